"""The hook that keeps the compiler away from a request's path on the CPU."""

import importlib
import inspect
from typing import Any

from plugin.vllm_hooks.hook import replace

COMPILED = (
    ("vllm.v1.sample.sampler", "batched_count_greater_than"),
    ("vllm.v1.sample.ops.topk_topp_sampler", "compiled_random_sample"),
    ("vllm.v1.worker.gpu_model_runner", "update_num_computed_tokens_for_batch_change"),
    ("vllm.model_executor.layers.vocab_parallel_embedding", "get_masked_input_and_mask"),
)
"""Functions with `@torch.compile` that a request on the CPU may meet, where they are looked up when they are called."""

GONE_IN_33 = {"compiled_random_sample"}
"""vLLM 0.33 samples without it."""


def eager_on_the_cpu() -> None:
    """vLLM decorates small functions of the samplers with `torch.compile`, also where the model itself is not compiled.
    They are built when the first request calls them: the first with `logprobs` waits a minute for the C++ compiler, its
    neighbours with it, and without a compiler on the machine it ends the engine.

    Here they run as they are written; on the CPU, what a fused kernel would save is microseconds a step. Unnecessary
    once vLLM compiles nothing on a CPU under `enforce_eager`.
    """
    for module_name, name in COMPILED:
        module = importlib.import_module(module_name)
        stock = getattr(module, name, None)
        parameters = () if stock is None else tuple(inspect.signature(stock).parameters)
        replace(module, name, parameters, _eager, optional=name in GONE_IN_33)


def _eager(stock: Any) -> Any:
    written = getattr(stock, "_torchdynamo_orig_callable", stock)

    def eager(*args: Any, **kwargs: Any) -> Any:
        return written(*args, **kwargs)

    return eager
