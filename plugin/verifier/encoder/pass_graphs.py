"""A long prompt's encoder pass as CUDA graphs, one for each stage of each size, and of long sizes for parts of stages.

Launched one by one, a stage's programs take the host longer than they take the GPU up to some thousands of tokens, and
a pass has as many stages as the encoder has layers, and one. Captured, a part is one launch: a step then does as much
of a pass as the GPU has time for. Up to `PassSizes.whole` a part is a stage of a prompt that is padded to the size. Of
longer prompts it is some rows of a stage, whatever the prompt's length, and parts that have none of its tokens are left
out. The captured sequences are the prompt and one that holds the padding, which is attended among itself.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from plugin.verifier.encoder.capture import PART_ROWS, PassSizes
from plugin.verifier.encoder.passes import EncoderPass, Room
from plugin.verifier.encoder.text_encoder import TextEncoder

Stages = list[list[torch.cuda.CUDAGraph]]
"""Graphs by stage, of a stage's parts."""

BOUNDS = 2
"""Of what is sent with a prompt, the first int64s: the two sequences' bounds, three int32."""


class PassGraphs:
    """Captured once; then `begin` a pass of any prompt that fits. One pass at a time: all sizes share their buffers."""

    def __init__(self, encoder: TextEncoder, sizes: PassSizes, dtype: torch.dtype) -> None:
        """
        Args:
            encoder: with its weights.
            sizes: the passes to capture; some.
            dtype: of the encoder's states.
        """
        from vllm.v1.worker.gpu.buffer_utils import UvaBufferPool

        self._encoder, self._sizes = encoder, sizes
        self._most = most = max(*sizes.whole, sizes.parted)
        device, attention = encoder.device, encoder.layers[0].self_attn
        # One copy sends a prompt. What stands behind its ids, of a longer one before it, is padding as good as any.
        self._packed = torch.zeros(BOUNDS + most, dtype=torch.int64, device=device)
        self._laid_out = np.zeros(BOUNDS + most, dtype=np.int64)
        self._sent = UvaBufferPool(BOUNDS + most, torch.int64)
        self._cu_seqlens, self._ids = self._packed[:BOUNDS].view(torch.int32)[:3], self._packed[BOUNDS:]
        # Sizes may go beyond the model's positions; prompts do not.
        positions = min(layer.self_attn.rotary_emb.cos_sin_cache.shape[0] for layer in encoder.layers)
        self._positions = torch.arange(most, device=device).clamp(max=positions - 1)

        def rows(*shape: int) -> torch.Tensor:
            return torch.zeros(most, *shape, dtype=dtype, device=device)

        qkv_size = attention.q_size + 2 * attention.kv_size
        self._room = Room(rows(encoder.hidden_size), rows(qkv_size), rows(encoder.hidden_size))
        if sizes.parted:
            self._parted_room = Room(
                self._room.residual, self._room.qkv, self._room.states, rows(qkv_size),
                rows(attention.num_heads, attention.head_dim),
            )  # fmt: skip
        self._graphs: dict[int, Stages] = {}

    def capture(self, pool: Any) -> None:
        """Capture every part of every size, on the current stream, into a graph memory pool. None leaves anything in
        it: what a part hands on stands in the buffers."""
        # What fewer tokens need finds room where most were.
        if self._sizes.parted:
            self._capture(self._sizes.parted, PART_ROWS, self._parted_room, pool)
        for size in reversed(self._sizes.whole):
            room = Room(*(each[:size] for each in (self._room.residual, self._room.qkv, self._room.states)))
            self._capture(size, size, room, pool)

    def _capture(self, size: int, part: int, room: Room, pool: Any) -> None:
        from vllm.utils.torch_utils import current_stream

        def begun() -> EncoderPass:
            return EncoderPass(
                self._encoder, self._ids[:size], self._positions[:size], self._cu_seqlens, size, room
            )

        self._cu_seqlens[1:] = size
        parts = range(0, size, part)
        under_way, self._graphs[size] = begun(), []
        while (
            under_way.rows_done < under_way.num_rows
        ):  # programs are compiled and chosen before they are captured
            under_way.advance(part)
        under_way = begun()
        while under_way.rows_done < under_way.num_rows:
            stage = [torch.cuda.CUDAGraph() for _ in parts]
            for graph in stage:
                with torch.cuda.graph(graph, pool=pool, stream=current_stream()):
                    under_way.advance(part)
            self._graphs[size].append(stage)

    def begin(self, prompt: torch.Tensor) -> "CapturedPass | None":
        """A pass over one prompt's token ids, `[length]`, of which nothing is done yet; None where it is too long."""
        length = prompt.shape[0]
        part = self._sizes.part(length)
        if part is None:
            return None
        padded = -(-length // part) * part
        laid_out = self._laid_out[: BOUNDS + length]
        laid_out[:BOUNDS].view(np.int32)[:3] = 0, length, padded
        laid_out[BOUNDS:] = prompt.numpy()
        self._sent.copy_to_gpu(laid_out, out=self._packed[: BOUNDS + length])
        graphs = self._graphs[part if length <= part else self._sizes.parted]
        return CapturedPass(graphs, part, self._room.states[:length])


class CapturedPass:
    """One prompt's run through its graphs. As an `EncoderPass`, in whole parts."""

    def __init__(self, stages: Stages, part: int, states: torch.Tensor) -> None:
        """
        Args:
            stages: graphs of all parts, of which the last ones may have none of the prompt's tokens.
            part: tokens of each part but the last.
            states: `[length, hidden_size]`, where the last graph leaves them.
        """
        self._part, self._buffer = part, states
        parts = -(-len(states) // part)
        self._graphs: Sequence[torch.cuda.CUDAGraph] = [each for stage in stages for each in stage[:parts]]
        self.num_rows = len(stages) * len(states)
        self._states: torch.Tensor | None = None
        self.rows_done = 0

    @property
    def states(self) -> torch.Tensor:
        """See `EncoderPass.states`."""
        if self._states is None:
            raise RuntimeError(f"the encoder has done {self.rows_done} of {self.num_rows} rows")
        return self._states

    def advance(self, num_rows: int) -> None:
        """Do the next rows, in order.

        Raises:
            ValueError: they are not whole parts.
        """
        first, end = self._parts(self.rows_done), self._parts(self.rows_done + num_rows)
        for graph in self._graphs[first:end]:
            graph.replay()
        self.rows_done += num_rows
        if self.rows_done == self.num_rows:
            self._states = self._buffer.clone()  # the next pass writes there

    def _parts(self, rows: int) -> int:
        """How many parts so many rows are."""
        length = len(self._buffer)
        stage, row = divmod(rows, length)
        parts, rest = divmod(row, self._part)
        if rest:
            raise ValueError(f"{rows} rows of a prompt of {length} are not whole parts of {self._part}")
        return stage * -(-length // self._part) + parts
