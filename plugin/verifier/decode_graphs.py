"""Decode graphs for every number of tokens that a request may bring: one for each K, and any mixture of them.

vLLM captures either graphs of one query length or graphs of any mixture up to it ("varlen"), the latter only for
adaptive verification. Here K may change from step to step (`plugin.vllm_hooks.draft_length`), and one request may join
beside others with K drafts. A uniform graph knows its few requests and splits their keys further, so that the batches
where this tells have one for each K; mixed graphs serve all other steps.
"""

from collections.abc import Iterable

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, ModelCudaGraphManager

FEW_REQUESTS = (1, 2, 4, 8, 16, 32)
"""Requests of the uniform graphs of the shorter query lengths: 42 graphs for a block of eight. With more requests the
mixed graphs are as good."""


class DecodeGraphManager(ModelCudaGraphManager):
    """vLLM's manager with more graphs behind the uniform ones of full length, for T5Gemma 2 with a draft; else vLLM's.

    Attributes:
        longest_query: set by the runner's hook for a step whose prefills all run as decodes: its longest query. vLLM
            itself gives no bound for a step with prefills, which keeps it out of mixed graphs.
    """

    longest_query: int | None = None

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
