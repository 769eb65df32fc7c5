"""A long prompt's encoder pass as CUDA graphs, one for each stage of each size.

Launched one by one, a stage's programs take the host longer than they take the GPU up to some thousands of tokens, and
a pass has as many stages as the encoder has layers, and one. Captured, a stage is one launch: a step then does as much
of a pass as the GPU has time for. Prompts beyond the largest size are parted further than into stages, and run without
graphs. The captured sequences are the prompt and one that holds the padding, which is attended among itself.
"""

from collections.abc import Sequence
from typing import Any

import torch

from plugin.verifier.encoder.graphs import copy_cu_seqlens, copy_tokens
from plugin.verifier.encoder.passes import EncoderPass, Room
from plugin.verifier.encoder.prompt_batch import PromptBatch
from plugin.verifier.encoder.text_encoder import TextEncoder


class PassGraphs:
    """Captured once; then `begin` a pass of any prompt that fits. One pass at a time: all sizes share their buffers."""

    def __init__(self, encoder: TextEncoder, sizes: Sequence[int], dtype: torch.dtype) -> None:
        """
        Args:
            encoder: with its weights.
            sizes: prompt tokens that passes are captured for, ascending; at least one.
            dtype: of the encoder's states.
        """
        self._encoder, self._sizes = encoder, sizes
        attention, device = encoder.layers[0].self_attn, encoder.device
        self._ids, self._positions = torch.zeros(2, sizes[-1], dtype=torch.int64, device=device)
        self._cu_seqlens = torch.zeros(3, dtype=torch.int32, device=device)
        widths = (encoder.hidden_size, attention.q_size + 2 * attention.kv_size, encoder.hidden_size)
        self._room = [torch.zeros(sizes[-1], width, dtype=dtype, device=device) for width in widths]
        self._graphs: dict[int, list[torch.cuda.CUDAGraph]] = {}

    def _pass(self, size: int) -> EncoderPass:
        room = Room(*(buffer[:size] for buffer in self._room))
        return EncoderPass(
            self._encoder, self._ids[:size], self._positions[:size], self._cu_seqlens, size, room
        )

    def capture(self, pool: Any) -> None:
        """Capture every stage of every size, on the current stream, into a graph memory pool. None leaves anything in
        it: what a stage hands on stands in the buffers."""
        from vllm.utils.torch_utils import current_stream

        for size in reversed(self._sizes):  # what fewer tokens need finds room where most were
            self._cu_seqlens[1:] = size
            first = self._pass(size)
            first.advance(first.num_rows)  # programs are compiled and chosen before they are captured
            under_way, self._graphs[size] = self._pass(size), []
            for _ in range(first.num_rows // size):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=current_stream()):
                    under_way.advance(size)
                self._graphs[size].append(graph)

    def begin(self, prompt: torch.Tensor) -> "CapturedPass | None":
        """A pass over one prompt's token ids, `[length]`, of which nothing is done yet; None where it is too long."""
        length = prompt.shape[0]
        size = next((size for size in self._sizes if size >= length), None)
        if size is None:
            return None
        batch = PromptBatch.of([prompt], torch.device("cpu"))
        self._cu_seqlens[2] = size
        copy_tokens(self._ids[:size], batch.ids)
        copy_tokens(self._positions[:size], batch.positions)
        copy_cu_seqlens(self._cu_seqlens, batch.cu_seqlens)
        return CapturedPass(self._graphs[size], self._room[2][:length])


class CapturedPass:
    """One prompt's run through the graphs of its size. As an `EncoderPass`, in whole stages."""

    def __init__(self, graphs: Sequence[torch.cuda.CUDAGraph], states: torch.Tensor) -> None:
        """`states`: `[length, hidden_size]`, where the last graph leaves them."""
        self._graphs, self._buffer = graphs, states
        self._states: torch.Tensor | None = None
        self.rows_done = 0

    @property
    def num_rows(self) -> int:
        return len(self._graphs) * len(self._buffer)

    @property
    def states(self) -> torch.Tensor:
        """See `EncoderPass.states`."""
        if self._states is None:
            raise RuntimeError(f"the encoder has done {self.rows_done} of {self.num_rows} rows")
        return self._states

    def advance(self, num_rows: int) -> None:
        """Do the next rows, in order.

        Raises:
            ValueError: they are not whole stages.
        """
        stages, rest = divmod(num_rows, len(self._buffer))
        if rest:
            raise ValueError(f"{num_rows} rows are not whole stages of {len(self._buffer)}")
        done = self.rows_done // len(self._buffer)
        for graph in self._graphs[done : done + stages]:
            graph.replay()
        self.rows_done += num_rows
        if self.rows_done == self.num_rows:
            self._states = self._buffer.clone()  # the next pass writes there
