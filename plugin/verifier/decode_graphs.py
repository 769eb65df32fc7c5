"""Decode graphs for steps in which requests bring different numbers of tokens: one joins beside others with K drafts.

vLLM captures either graphs of one query length or graphs of any mixture up to it ("varlen"), the latter only for
adaptive verification. Both are wanted here: a uniform graph knows its few requests and splits their keys further, and
only steps that admit a request, or in which a request has fewer drafts, are mixed.
"""

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, ModelCudaGraphManager


class DecodeGraphManager(ModelCudaGraphManager):
    """vLLM's manager with a few mixed graphs behind the uniform ones, for T5Gemma 2 with a draft; else vLLM's own.

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
        begin = 0
        for num_tokens in mixed_sizes(self.decode_query_len, most):
            graph = BatchExecutionDescriptor(
                cg_mode=full,
                num_tokens=num_tokens,
                num_reqs=min(num_tokens, self.max_num_reqs),
                max_query_len=self.decode_query_len,
            )
            self._capture_descs.setdefault(full, []).append(graph)
            for tokens in range(begin, num_tokens + 1):
                found = self._candidates.get((tokens, 0), [])
                uniform = [d for d in found if d.cg_mode == full]
                self._candidates[tokens, 0] = [*uniform, graph, *(d for d in found if d.cg_mode != full)]
            begin = num_tokens + 1
        # The largest first: vLLM sizes the output buffers by it.
        if full in self._capture_descs:
            self._capture_descs[full].sort(key=lambda d: d.num_tokens, reverse=True)


def mixed_sizes(decode_query_len: int, most: int) -> list[int]:
    """Tokens of the mixed graphs: doubling from one full query to `most`. A step reads the weights whatever its size,
    so that padding up to twice its tokens costs little."""
    sizes = []
    size = decode_query_len
    while size < most:
        sizes.append(size)
        size *= 2
    return [*sizes, most] if most >= decode_query_len else []
