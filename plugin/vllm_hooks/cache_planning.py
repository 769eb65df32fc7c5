"""vLLM's module that plans the paged caches."""

try:
    from vllm.v1.core import kv_cache_planning as planning
except ImportError:  # vLLM 0.32
    from vllm.v1.core import kv_cache_utils as planning

__all__ = ["planning"]
