"""One run of the encoder over prompts, in parts: a long prompt is encoded over several engine steps.

The encoder is bidirectional: a token of a full layer sees every other token's state below that layer, so no part of a
prompt can go through all layers ahead of the rest. What can be parted without changing anything is the order inside:
layer after layer, and in a layer tile after tile of tokens, once the keys and values of the whole layer are there. What
is kept between parts, and what a tile needs on top of it, grows with the prompt's length, never with its square.
"""

from typing import TYPE_CHECKING

import torch

from plugin.attention.bidirectional import rows_attention

if TYPE_CHECKING:
    from plugin.verifier.encoder import EncoderLayer, TextEncoder

WHOLE_TILE_TOKENS = 8192
"""Tokens of a tile where the encoder does not pause: what bounds the memory of the widest activations."""


class EncoderPass:
    """Made with the prompts, advanced tile by tile; then `states` holds what the encoder says of them."""

    def __init__(
        self,
        encoder: "TextEncoder",
        ids: torch.Tensor,
        positions: torch.Tensor,
        cu_seqlens: torch.Tensor,
        max_len: int,
        tile_tokens: int,
    ) -> None:
        """Arguments as of `TextEncoder.forward`."""
        self._encoder, self._positions = encoder, positions
        self._cu_seqlens, self._max_len = cu_seqlens, max_len
        self._tile_tokens, self._num_tokens = tile_tokens, ids.shape[0]
        self._layer = self._row = 0
        self.tiles_done = 0
        self._residual = encoder.embed(ids)
        self._normed = encoder.layers[0].first_norm(self._residual)
        self._attended: torch.Tensor | None = None
        self._qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def num_tiles(self) -> int:
        """Tiles from the first layer to the last."""
        return len(self._encoder.layers) * -(-self._num_tokens // self._tile_tokens)

    @property
    def states(self) -> torch.Tensor:
        """Normed encoder states `[num_tokens, hidden_size]`.

        Raises:
            RuntimeError: not all tiles are done.
        """
        if self._layer < len(self._encoder.layers):
            raise RuntimeError(f"the encoder is in layer {self._layer} of {len(self._encoder.layers)}")
        return self._normed

    def advance(self, num_tiles: int) -> None:
        """Do the next tiles, in order."""
        for _ in range(num_tiles):
            layer = self._encoder.layers[self._layer]
            if self._row == 0:
                self._open(layer)
            rows = slice(self._row, min(self._row + self._tile_tokens, self._num_tokens))
            self._run(layer, rows)
            self._row = rows.stop
            if self._row == self._num_tokens:
                self._layer, self._row = self._layer + 1, 0
                self._attended = self._qkv = None
            self.tiles_done += 1

    def _open(self, layer: "EncoderLayer") -> None:
        """What a layer's tiles share: a long prompt's keys and values where each tile attends to all of them, else the
        attention itself, which for a window is linear in the length.
        """
        attention = layer.self_attn
        qkv = attention.projected(self._normed, self._positions)
        one_prompt = self._cu_seqlens.shape[0] == 2
        if attention.window is None and one_prompt and self._num_tokens > self._tile_tokens:
            self._qkv = qkv
        else:
            self._attended = attention.attended(*qkv, self._cu_seqlens, self._max_len)

    def _run(self, layer: "EncoderLayer", rows: slice) -> None:
        if self._attended is not None:
            attended = self._attended[rows]
        else:
            assert self._qkv is not None
            q, k, v = self._qkv
            attended = rows_attention(q[rows], k, v, layer.self_attn.scaling)
        next_norm = self._encoder.norm_after(self._layer)
        normed = layer.rest(self._residual[rows], attended, next_norm)
        if rows.stop - rows.start == self._num_tokens:
            self._normed = normed
        else:  # the layer's own norm of these rows is read by no later tile
            self._normed[rows] = normed
