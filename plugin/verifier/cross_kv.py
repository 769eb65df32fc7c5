"""The decoder's cross keys and values of a whole step: one matrix product over all layers, one program that stores."""

from collections.abc import Sequence

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

from plugin.attention.cross_write import cross_write
from plugin.verifier.decoder import Decoder, DecoderAttention
from plugin.verifier.prompt_batch import positions_of

PIECE_TOKENS = 8192
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

    def bind(self) -> None:
        """Take the addresses of the layers' cross caches.

        Raises:
            RuntimeError: the caches differ in shape or strides.
        """
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

    def write(
        self, states: torch.Tensor, lengths: Sequence[int], rows: Sequence[int], block_table: torch.Tensor
    ) -> None:
        """Store all layers' cross keys and values of the prompts admitted in a step.

        Args:
            states: `[num_tokens, hidden_size]`, encoder states, prompts one after another.
            lengths: tokens of each prompt.
            rows: each prompt's request, as a row of `block_table`.
            block_table: `[num_requests, max_blocks]` of the cross cache.
        """
        if self._addresses is None or self._like is None:
            raise RuntimeError("the cross caches are not allocated yet")
        num_tokens = states.shape[0]
        # Positions begin where 16 divides the address, whatever the length: Triton compiles others for other addresses.
        places = np.zeros((2, -(-num_tokens // 4) * 4), dtype=np.int32)
        places[0, :num_tokens] = np.repeat(np.asarray(rows, dtype=np.int32), lengths)
        places[1, :num_tokens] = positions_of(lengths)
        rows_and_positions = async_tensor_h2d(places, device=states.device)
        for first in range(0, num_tokens, PIECE_TOKENS):
            piece = slice(first, min(first + PIECE_TOKENS, num_tokens))
            kv = torch.nn.functional.linear(states[piece], self.weight, self.bias)
            row, position = rows_and_positions[:, piece]
            cross_write(kv, self.k_weights, self.eps, self._addresses, self._like, row, position, block_table)
