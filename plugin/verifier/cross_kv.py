"""The decoder's cross keys and values of a whole step: one matrix product over all layers, one program that stores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

from plugin.attention.cross_write import cross_write
from plugin.verifier.cross_graphs import CrossGraphs, in_pieces, lay_out
from plugin.verifier.decoder import Decoder, DecoderAttention
from plugin.verifier.encoder.states import joined

EAGER_TOKENS = 8192
"""Tokens whose keys and values of all layers are in memory at once, beside the pages that they go to."""


class CrossKV:
    """Made once, after the weights are loaded, of the K and V rows of every layer's projection (a copy of them).

    `bind` it to the caches whenever they are allocated anew. Weights that are reloaded later are not seen.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.layers: list[DecoderAttention] = [layer.self_attn for layer in decoder.layers]
        first = self.layers[0]
        rows = slice(first.q_size, first.q_size + 2 * first.kv_size)
        weights = [layer.qkv_proj.weight for layer in self.layers]
        if any(weight.shape[0] != rows.stop for weight in weights):
            raise RuntimeError(
                f"qkv_proj weights are {list(weights[0].shape)}: not [{rows.stop}, hidden_size]"
            )
        self.weight = torch.cat([weight.detach()[rows] for weight in weights])
        biases = [layer.qkv_proj.bias for layer in self.layers]
        self.bias = None if biases[0] is None else torch.cat([bias.detach()[rows] for bias in biases])
        self.k_weights = torch.stack([layer.k_norm.weight.detach() for layer in self.layers])
        self.eps: float = first.k_norm.variance_epsilon
        self._addresses: torch.Tensor | None = None
        self._like: torch.Tensor | None = None
        self._graphs: CrossGraphs | None = None

    def bind(self) -> None:
        """Take the addresses of the layers' cross caches. What was captured is gone: it stores in those before.

        Raises:
            RuntimeError: the caches differ in shape or strides.
        """
        self._graphs = None
        caches = [layer.attn.cross_cache.kv_cache for layer in self.layers]
        like = caches[0]
        for cache in caches:
            if cache.shape != like.shape or cache.stride() != like.stride() or cache.dtype != like.dtype:
                raise RuntimeError(
                    f"cross caches of {list(cache.shape)}, strides {cache.stride()}, beside {list(like.shape)}, "
                    f"strides {like.stride()}"
                )
        self._like = like
        self._addresses = torch.tensor(
            [cache.data_ptr() for cache in caches], dtype=torch.int64, device=like.device
        )

    def capture(self, sizes: Sequence[int], block_table: torch.Tensor, pool: Any) -> None:
        """Capture `write` on the current stream: one launch for as many tokens as the largest graph takes.

        Args:
            sizes: numbers of tokens, ascending; those beyond `EAGER_TOKENS` are not captured.
            block_table: `[max_requests, max_blocks]`, what `write` is given rows of.
            pool: a graph memory pool whose other graphs leave nothing in it.
        """
        self._graphs = None  # before its memory is needed
        if sizes := [size for size in sizes if size <= EAGER_TOKENS]:
            graphs = CrossGraphs(self, sizes, block_table)
            graphs.capture(pool)
            self._graphs = graphs

    def write(self, states: Sequence[torch.Tensor], rows: Sequence[int], block_table: torch.Tensor) -> None:
        """Store all layers' cross keys and values of the prompts admitted in a step: by graphs where they hold them.

        Args:
            states: encoder states of each prompt, `[length, hidden_size]`.
            rows: each prompt's request, as a row of `block_table`; below zero it is stored nowhere.
            block_table: `[num_requests, max_blocks]` of the cross cache.
        """
        if self._graphs is not None and self._graphs.write(states, rows, block_table):
            return
        for piece in in_pieces(states, rows, EAGER_TOKENS):
            together = joined([part for part, _, _ in piece])
            num_tokens = together.shape[0]
            # Positions begin where 16 divides the address, whatever the length: Triton compiles another program else.
            places = np.empty((2, -(-num_tokens // 4) * 4), dtype=np.int32)
            lay_out(piece, places)
            row, position = async_tensor_h2d(places, device=together.device)[:, :num_tokens]
            self.store(together, row, position, block_table)

    def store(
        self, states: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, block_table: torch.Tensor
    ) -> None:
        """`write` of tokens whose places are on the device, two launches: what graphs are made of.

        Args:
            states: `[num_tokens, hidden_size]`.
            rows, positions, block_table: see `cross_write`.

        Raises:
            RuntimeError: the caches are not bound.
        """
        if self._addresses is None or self._like is None:
            raise RuntimeError("the cross caches are not allocated yet")
        kv = torch.nn.functional.linear(states, self.weight, self.bias)
        cross_write(kv, self.k_weights, self.eps, self._addresses, self._like, rows, positions, block_table)
