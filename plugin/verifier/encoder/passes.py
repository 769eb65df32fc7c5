"""One run of the encoder over prompts, in parts: a long prompt is encoded over several engine steps.

The encoder is bidirectional: a token of a full layer sees every other token's state below that layer, so no part of a
prompt can go through all layers ahead of the rest. What can be parted without changing anything is the order inside:
stage after stage, and in a stage some rows (tokens) after others. A stage ends where a layer's queries, keys and values
are there for the whole prompt, which is what the next one's attention reads: the first stage embeds and projects for
the first layer, each other one has a layer's attention, what follows it, and the projections for the next layer. Rows
are done alone; but on a GPU a windowed layer attends to the whole prompt at once, which is one short launch. What is
kept between parts, and what a part needs on top of it, grows with the prompt's length, never with its square.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from plugin.attention.bidirectional import rows_attention

if TYPE_CHECKING:
    from plugin.verifier.encoder.text_encoder import EncoderLayer, TextEncoder

MOST_ROWS = 8192
"""Rows that are done at once: what bounds the memory of the widest activations."""


@dataclass(frozen=True, slots=True)
class Room:
    """Tensors that a pass works in, so that its addresses stay the same.

    Attributes:
        residual, states: `[num_tokens, hidden_size]`.
        qkv: `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`.
        next_qkv: as `qkv`, and needed where stages are done in parts. A stage that is done whole has read all of `qkv`
            when the next layer's is written there.
        attended: `[num_tokens, num_heads, head_dim]`, likewise: what the first part of a windowed layer leaves to the
            others on a GPU.
    """

    residual: torch.Tensor
    qkv: torch.Tensor
    states: torch.Tensor
    next_qkv: torch.Tensor | None = None
    attended: torch.Tensor | None = None


class EncoderPass:
    """Made with the prompts, advanced row by row; then `states` holds what the encoder says of them."""

    def __init__(
        self,
        encoder: "TextEncoder",
        ids: torch.Tensor,
        positions: torch.Tensor,
        cu_seqlens: torch.Tensor,
        max_len: int,
        room: Room | None = None,
    ) -> None:
        """Arguments as of `TextEncoder.forward`."""
        self._encoder, self._ids, self._positions = encoder, ids, positions
        self._cu_seqlens, self._max_len, self._room = cu_seqlens, max_len, room
        self._num_tokens = ids.shape[0]
        self.rows_done = 0
        buffers = (None, None, None) if room is None else (room.residual, room.qkv, room.states)
        self._residual, self._qkv, self._states = (_Rows(self._num_tokens, buffer) for buffer in buffers)
        self._next_qkv = self._qkv
        """Of the layer behind the stage's, whose own are read meanwhile."""
        if room is not None and room.next_qkv is not None:
            self._next_qkv = _Rows(self._num_tokens, room.next_qkv)
        self._attended: torch.Tensor | None = None

    @property
    def num_rows(self) -> int:
        """Rows of all stages: `num_layers + 1` times the tokens."""
        return (1 + len(self._encoder.layers)) * self._num_tokens

    @property
    def states(self) -> torch.Tensor:
        """Normed encoder states `[num_tokens, hidden_size]`.

        Raises:
            RuntimeError: not all rows are done.
        """
        if self.rows_done < self.num_rows:
            raise RuntimeError(f"the encoder has done {self.rows_done} of {self.num_rows} rows")
        return self._states.whole

    def advance(self, num_rows: int) -> None:
        """Do the next rows, in order."""
        end = self.rows_done + num_rows
        while self.rows_done < end:
            stage, row = divmod(self.rows_done, self._num_tokens)
            rows = slice(row, row + min(end - self.rows_done, MOST_ROWS, self._num_tokens - row))
            self._do(stage, rows)
            self.rows_done += rows.stop - row
            if rows.stop == self._num_tokens:
                self._qkv, self._next_qkv = self._next_qkv, self._qkv
                if self._room is None:
                    self._next_qkv = _Rows(self._num_tokens)

    def _do(self, stage: int, rows: slice) -> None:
        normed = self._rest(stage - 1, rows) if stage else self._embed(rows)
        if stage == len(self._encoder.layers):
            self._states.put(rows, normed)
            return
        attention = self._encoder.layers[stage].self_attn
        self._next_qkv.put(rows, attention.projected(normed, self._positions[rows]))

    def _embed(self, rows: slice) -> torch.Tensor:
        residual = self._encoder.embed(self._ids[rows])
        normed = self._encoder.layers[0].first_norm(residual)
        self._residual.put(rows, residual)
        return normed

    def _rest(self, layer_idx: int, rows: slice) -> torch.Tensor:
        layer = self._encoder.layers[layer_idx]
        attended = self._attend(layer, rows)
        return layer.rest(self._residual.whole[rows], attended, self._encoder.norm_after(layer_idx))

    def _attend(self, layer: "EncoderLayer", rows: slice) -> torch.Tensor:
        """`[num_rows, num_heads, head_dim]`."""
        attention = layer.self_attn
        if self._attended is None:
            q, k, v = attention.heads(self._qkv.whole)
            in_parts = rows.stop - rows.start < self._num_tokens
            if in_parts and (attention.window is None or q.device.type == "cpu"):
                return rows_attention(q, k, v, rows, attention.window, attention.scaling, self._cu_seqlens)
            if self._room is None:
                self._qkv = _Rows(0)  # nobody reads them again
            self._attended = attention.attended(q, k, v, self._cu_seqlens, self._max_len)
            if self._room is not None and self._room.attended is not None and in_parts:
                self._attended = self._room.attended.copy_(self._attended)
        attended = self._attended[rows]
        if rows.stop == self._num_tokens:
            self._attended = None  # before the next layer's projections need the room
        return attended


class _Rows:
    """A tensor that is made some rows at a time: in the room given, or, where they come all at once, it is theirs."""

    def __init__(self, num_rows: int, room: torch.Tensor | None = None) -> None:
        self._num_rows, self._tensor = num_rows, room

    @property
    def whole(self) -> torch.Tensor:
        assert self._tensor is not None
        return self._tensor

    def put(self, rows: slice, made: torch.Tensor) -> None:
        if self._tensor is None:
            if len(made) == self._num_rows:
                self._tensor = made
                return
            self._tensor = made.new_empty(self._num_rows, *made.shape[1:])
        self._tensor[rows] = made
