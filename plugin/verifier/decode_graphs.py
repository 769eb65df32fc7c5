"""Decode graphs for every number of tokens that a request may bring: one for each K, and any mixture of them. They go
on behind the model to the step's greedy tokens.

vLLM captures either graphs of one query length or graphs of any mixture up to it ("varlen"), the latter only for
adaptive verification. Here K may change from step to step (`plugin.vllm_hooks.draft_length`), and one request may join
beside others with K drafts. A uniform graph knows its few requests and splits their keys further, so that the batches
where this tells have one for each K; mixed graphs serve all other steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.utils.torch_utils import weak_ref_tensor
from vllm.v1.worker.gpu.cudagraph_utils import (
    BatchExecutionDescriptor,
    CudaGraphManager,
    ModelCudaGraphManager,
)

FEW_REQUESTS = (1, 2, 4, 8, 16, 32)
"""Requests of the uniform graphs of the shorter query lengths: 42 graphs for a block of eight. With more requests the
mixed graphs are as good."""

MOST_LOGITS = 256
"""Tokens of the largest graph that goes on behind the model. Logits of the published vocabulary are half a megabyte a
token (bfloat16) in the graphs' memory, and the more tokens a step has, the less of its time is the host's."""


class Sampling(Protocol):
    """What goes on behind the model: `plugin.vllm_hooks.v2.graph_sampling`."""

    def run(self, hidden_states: torch.Tensor, num_reqs: int) -> torch.Tensor:
        """Logits `[num_tokens, vocab_size]` of hidden states `[num_tokens, hidden_size]` of so many requests at most;
        the rest it keeps."""

    def reserve(self, num_tokens: int) -> None:
        """Take as much memory as the logits of so many tokens, and give it back."""

    def stage(self) -> None:
        """Have the next replay know its batch."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replayed graph has computed, in the same places every time.

    Attributes:
        outputs: what vLLM makes of it.
        hidden_states: `[num_tokens, hidden_size]`, the very object in `outputs`.
        logits: `[num_tokens, vocab_size]` if the graph computes them, there until another graph is replayed.
    """

    outputs: Any
    hidden_states: torch.Tensor
    logits: torch.Tensor | None


class SampledGraphs(CudaGraphManager):
    """Captures `sampling` behind the model. It stands between vLLM's two managers, of which the upper one makes the
    forward pass that this one prolongs, and the lower one captures it.

    Attributes:
        sampling: set before the capture, by the runner's hook; None captures what vLLM does.
        logits: by graph, where it leaves them. The memory is that of all graphs together: nobody else may hold it.
    """

    sampling: Sampling | None = None
    logits: dict[BatchExecutionDescriptor, torch.Tensor]
    _replays: dict[BatchExecutionDescriptor, Replay]

    def capture(self, create_forward_fn: Any, progress_bar_desc: str = "Capturing CUDA graphs") -> None:
        """vLLM's, of longer forward passes."""
        self.logits, self._replays = {}, {}
        if self.sampling is not None:
            create_forward_fn = self._prolonged(create_forward_fn, self.sampling)
        super().capture(create_forward_fn, progress_bar_desc)

    def _prolonged(self, create_forward_fn: Any, sampling: Sampling) -> Any:
        descs = self._capture_descs.get(CUDAGraphMode.FULL, [])
        most = max((desc.num_tokens for desc in descs if is_sampled(desc)), default=0)

        def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
            forward = create_forward_fn(desc, warmup=warmup)
            if desc.cg_mode != CUDAGraphMode.FULL:
                return forward

            def forward_and_sample(cg_mode: CUDAGraphMode) -> None:
                forward(cg_mode)
                if not is_sampled(desc):
                    # vLLM estimates the memory of all graphs by the two largest.
                    sampling.reserve(most)
                    return
                logits = sampling.run(self.hidden_states[: desc.num_tokens], desc.num_reqs)
                if not warmup:
                    self.logits[desc] = weak_ref_tensor(logits)

            return forward_and_sample

        return create


def is_sampled(desc: BatchExecutionDescriptor) -> bool:
    """Whether a full graph goes on behind the model: few tokens, and a decode step's, which all need their logits."""
    longest = desc.uniform_token_count or desc.max_query_len
    return longest is not None and desc.num_tokens <= MOST_LOGITS


class DecodeGraphManager(ModelCudaGraphManager, SampledGraphs):
    """vLLM's manager with more graphs behind the uniform ones of full length, for T5Gemma 2 with a draft; else vLLM's.

    Attributes:
        longest_query: set by the runner's hook for a step whose prefills all run as decodes: its longest query. vLLM
            itself gives no bound for a step with prefills, which keeps it out of mixed graphs.
        replayed: the last replay, where graphs are sampled.
    """

    longest_query: int | None = None
    replayed: Replay | None = None

    def run_fullgraph(self, desc: BatchExecutionDescriptor) -> Any:
        """vLLM's, but that a graph that is replayed again needs no new views of its buffers, one a tap."""
        if self.sampling is None:
            return super().run_fullgraph(desc)
        found = self._replays.get(desc)
        logits = self.logits.get(desc) if found is None else found.logits
        if logits is not None:
            self.sampling.stage()
        if found is None:
            outputs = super().run_fullgraph(desc)
            hidden_states = outputs[0] if isinstance(outputs, tuple) else outputs
            found = self._replays[desc] = Replay(outputs, hidden_states, logits)
        else:
            CudaGraphManager.run_fullgraph(self, desc)
        self.replayed = found
        return found.outputs

    def _init_candidates(self) -> None:
        super()._init_candidates()
        full = CUDAGraphMode.FULL
        model_type = self.vllm_config.model_config.hf_config.model_type
        if model_type != "t5gemma2" or self.varlen_decode or self.decode_query_len == 1:
            return
        if not self.cudagraph_mode.separate_routine() or self.cudagraph_mode.decode_mode() != full:
            return
        most = min(
            self.max_num_reqs * self.decode_query_len, self.compilation_config.max_cudagraph_capture_size or 0
        )
        for query_len in range(1, self.decode_query_len):
            self._add(
                BatchExecutionDescriptor(full, query_len * num_reqs, num_reqs, uniform_token_count=query_len)
                for num_reqs in FEW_REQUESTS
                if num_reqs <= self.max_num_reqs and query_len * num_reqs <= most
            )
        self._add(
            BatchExecutionDescriptor(
                full, num_tokens, min(num_tokens, self.max_num_reqs), max_query_len=self.decode_query_len
            )
            for num_tokens in mixed_sizes(self.decode_query_len, most)
        )
        # The largest first: vLLM sizes the output buffers by it.
        if full in self._capture_descs:
            self._capture_descs[full].sort(key=lambda d: d.num_tokens, reverse=True)

    def _add(self, graphs: Iterable[BatchExecutionDescriptor]) -> None:
        """Have full `graphs`, ascending, captured, each for what is too large for the one before it. A step takes the
        first of its candidates that fits, so they stand behind the full graphs that are there.
        """
        full, begin = CUDAGraphMode.FULL, 0
        for graph in graphs:
            self._capture_descs.setdefault(full, []).append(graph)
            for tokens in range(begin, graph.num_tokens + 1):
                found = self._candidates.get((tokens, 0), [])
                before = [d for d in found if d.cg_mode == full]
                self._candidates[tokens, 0] = [*before, graph, *(d for d in found if d.cg_mode != full)]
            begin = graph.num_tokens + 1


def mixed_sizes(decode_query_len: int, most: int) -> list[int]:
    """Tokens of the mixed graphs: doubling from one full query to `most`. A step reads the weights whatever its size,
    so that padding up to twice its tokens costs little."""
    sizes = []
    size = decode_query_len
    while size < most:
        sizes.append(size)
        size *= 2
    return [*sizes, most] if most >= decode_query_len else []
