"""Storing a step's cross keys and values as CUDA graphs, one for each number of tokens that the encoder is captured at.

Launch by launch the product over all layers and the program that stores take the host longer than the encoder's graph,
on the way to a request's first token; the GPU is done with them in a few microseconds. Here a step has its tokens'
places sent in one copy and its states put together in another, and one launch; more tokens than the largest graph's are
as many of those. The padding's row is -1, which is stored nowhere.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from plugin.verifier.cross_kv import CrossKV


MOST_PIECES = 8
"""Graphs that a step replays at most. The largest has 4096 tokens unless a user sets others: 32 768 in all, what the
published checkpoints take."""

Part = tuple[torch.Tensor, int, int]
"""States of some of a prompt's tokens, `[length, hidden_size]`, the prompt's row, and the first token's place."""


def in_pieces(states: Sequence[torch.Tensor], rows: Sequence[int], most: int) -> Iterator[list[Part]]:
    """Prompts cut into pieces of `most` tokens; the last one may have fewer."""
    piece: list[Part] = []
    room = most
    for each, row in zip(states, rows, strict=True):
        first, length = 0, each.shape[0]
        while first < length:
            if not room:
                yield piece
                piece, room = [], most
            taken = min(room, length - first)
            part = each if taken == length else each[first : first + taken]
            piece.append((part, row, first))
            first, room = first + taken, room - taken
    yield piece


def lay_out(piece: Sequence[Part], laid_out: np.ndarray) -> None:
    """Write each token's row, and then each token's place in its prompt, into `[2, size]`; the padding's row is -1."""
    row_of, position_of = laid_out
    begin = 0
    for part, row, first in piece:
        length = part.shape[0]
        end = begin + length
        row_of[begin:end], position_of[begin:end] = row, np.arange(first, first + length)
        begin = end
    row_of[begin:], position_of[begin:] = -1, 0


class CrossGraphs:
    """Captured once, of a `CrossKV` that is bound; they store in the caches that it is bound to then. All sizes share
    their buffers.

    One `write` a step: each piece's places are sent from as many pinned buffers as there are steps under way
    (`UvaBufferPool`), so that none is laid out anew before its copy is done.
    """

    def __init__(self, cross: "CrossKV", sizes: Sequence[int], block_table: torch.Tensor) -> None:
        """
        Args:
            cross: what is captured.
            sizes: numbers of tokens, ascending; at least one.
            block_table: `[max_requests, max_blocks]`, read where it lies.
        """
        from vllm.v1.worker.gpu.buffer_utils import UvaBufferPool

        self._cross, self._sizes, self._table = cross, sizes, block_table
        most = sizes[-1]
        self._states = cross.weight.new_zeros(most, cross.weight.shape[1])
        self._places = torch.full((2 * most,), -1, dtype=torch.int32, device=cross.weight.device)
        self._laid_out = np.zeros(2 * most, dtype=np.int32)
        self._sent = [UvaBufferPool(2 * most, torch.int32) for _ in range(MOST_PIECES)]
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def capture(self, pool: Any) -> None:
        """Capture every size on the current stream, into a graph memory pool."""
        from vllm.utils.torch_utils import current_stream

        # Keys and values of fewer tokens find room where those of most were.
        for size in reversed(self._sizes):
            self._store(size)  # programs are compiled and chosen before they are captured
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=current_stream()):
                self._store(size)
            self._graphs[size] = graph

    def _store(self, size: int) -> None:
        rows, positions = self._places[: 2 * size].view(2, size)
        self._cross.store(self._states[:size], rows, positions, self._table)

    def write(self, states: Sequence[torch.Tensor], rows: Sequence[int], block_table: torch.Tensor) -> bool:
        """See `CrossKV.write`. False, and nothing is done, where there are more tokens than the graphs take, or the
        block table is another one."""
        num_tokens, most = sum(each.shape[0] for each in states), self._sizes[-1]
        same_table = block_table.data_ptr() == self._table.data_ptr()
        if num_tokens > MOST_PIECES * most or not same_table or block_table.stride() != self._table.stride():
            return False
        for sent, piece in zip(self._sent, in_pieces(states, rows, most), strict=False):
            tokens = sum(part.shape[0] for part, _, _ in piece)
            size = next(size for size in self._sizes if size >= tokens)
            laid_out = self._laid_out[: 2 * size]
            lay_out(piece, laid_out.reshape(2, size))
            sent.copy_to_gpu(laid_out, out=self._places[: 2 * size])
            torch.cat([part for part, _, _ in piece], out=self._states[:tokens])
            self._graphs[size].replay()
        return True
