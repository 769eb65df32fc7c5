"""A step's prompts through a captured encoder: laid out on the host, sent in one copy, and one launch.

vLLM's manager plans the graphs of a step, asks about each prompt several times, sends ids, positions and bounds one by
one, each through fresh pinned memory, fills what lies behind them, and copies the states out. All of that lies before
the encoder's first product, on the way to a request's first token. Here prompts that go through one graph are an array
and a copy; what needs several graphs, or none, stays with the manager.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

PACKED = "packed"
"""Among a graph's input buffers: the tensor that all others are views of."""


def packed_size(num_tokens: int, num_prompts: int) -> int:
    """Of what a graph of so many tokens and prompts reads, in int64."""
    return 2 * num_tokens + (num_prompts + 3) // 2


def views(packed: Any, num_tokens: int, num_prompts: int, int32: Any) -> tuple[Any, Any, Any]:
    """Ids and positions, `[num_tokens]`, and bounds, `[num_prompts + 2]`, int32, of a packed tensor or array."""
    bounds = packed[2 * num_tokens :].view(int32)[: num_prompts + 2]
    return packed[:num_tokens], packed[num_tokens : 2 * num_tokens], bounds


def one_graph(lengths: Sequence[int], sizes: Sequence[int], most: int) -> int | None:
    """The graph through which vLLM's manager runs prompts of these lengths together; None where it takes several graphs
    or none.

    Args:
        lengths: tokens of each prompt.
        sizes: tokens of the captured graphs, ascending.
        most: prompts of a graph.
    """

    def size_for(tokens: int) -> int | None:
        return next((size for size in sizes if size >= tokens), None)

    if len(lengths) > most:
        return None
    size, tokens = 0, 0
    for length in sorted(lengths):
        alone, together = size_for(length), size_for(tokens + length)
        if alone is None or together is None:
            return None
        if tokens and size + alone < together and alone >= size:
            return None  # two graphs are smaller than the one that takes all
        size, tokens = together, tokens + length
    return size


class PromptGraphs:
    """The captured encoder of vLLM's manager, which has to be made of `plugin.verifier.encoder.graphs`."""

    def __init__(self, manager: Any) -> None:
        """`manager`: vLLM's `EncoderCudaGraphManager`."""
        from vllm.v1.worker.gpu.buffer_utils import UvaBufferPool

        self._manager, self._sizes, self._most = manager, manager.token_budgets, manager.max_batch_size
        self._packed = np.zeros(packed_size(self._sizes[-1], self._most), dtype=np.int64)
        self._sent = UvaBufferPool(len(self._packed), torch.int64)
        self._places = np.arange(self._sizes[-1], dtype=np.int64)

    def run(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Encoder states `[num_tokens, hidden_size]` of prompts' token ids, each `[length]` on the host, one after
        another, which stand there until the next run; None where they do not go through one graph.
        """
        lengths = [prompt.shape[0] for prompt in prompts]
        size = one_graph(lengths, self._sizes, self._most)
        if size is None:
            return None
        graph = self._manager.budget_graphs["default"][size]
        self._sent.copy_to_gpu(self._laid_out(prompts, lengths, size), out=graph.input_buffers[PACKED])
        graph.graph.replay()
        self._manager.graph_hits += len(prompts)
        states: torch.Tensor = graph.output_buffer[: sum(lengths)]
        return states

    def _laid_out(self, prompts: Sequence[torch.Tensor], lengths: Sequence[int], size: int) -> np.ndarray:
        """What the graph reads. Behind the prompts stands a sequence of all padding, and then empty ones."""
        packed = self._packed[: packed_size(size, self._most)]
        packed[:] = 0
        ids, positions, bounds = views(packed, size, self._most, np.int32)
        begin = 0
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            end = begin + length
            ids[begin:end], positions[begin:end] = prompt.numpy(), self._places[:length]
            begin = bounds[i + 1] = end
        bounds[len(prompts) + 1 :] = size
        return packed
