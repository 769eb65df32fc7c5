"""Launches of Triton programs without Triton's own preparations. On the machine with the H200 one takes some 50 us on
the host, longer than its program on the GPU, and a decode step has eight to thirteen.

Triton looks anew at every argument, builds its key as a string and goes through all options in every call. Here a
launch is known again by what Triton compiles for: types, and of addresses and integers whether 16 divides them, and 1.
"""

import importlib
from typing import Any

import torch

from plugin.vllm_hooks.hook import HookError, replace
from plugin.vllm_hooks.v2_runner import cross_kv_before_decoder

MODULES = (
    "vllm.v1.worker.gpu.input_batch",
    "vllm.v1.worker.gpu.block_table",
    "vllm.v1.worker.gpu.buffer_utils",
    "vllm.v1.worker.gpu.sample.gumbel",
    "vllm.v1.worker.gpu.spec_decode.dflash.speculator",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils",
    "plugin.verifier.triton_greedy",
)
"""What launches programs in a step. Those that are launched are called `..._kernel`, those that they call are not."""


class QuickKernel:
    """Stands for a `triton.jit` function where that is launched: `kernel[grid](*args, **constants)`.

    Arguments by position may be tensors, integers, floats and None, as all of vLLM's are; whatever else there is, and
    whatever has not been compiled yet, goes to Triton.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._params = tuple(kernel.params)
        self._constant = tuple(bool(param.is_constexpr) for param in self._params)
        self._least = max((i for i, constant in enumerate(self._constant, 1) if not constant), default=0)
        self._compiled: dict[Any, tuple[Any, tuple[Any, ...]]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **options: Any) -> Any:
            key = self._key(args, options)
            found = None if key is None else self._compiled.get(key)
            if found is None:
                compiled = self.kernel[grid](*args, **options)
                if key is not None:
                    self._compiled[key] = compiled, self._rest(len(args), options)
                return compiled
            compiled, rest = found
            compiled[(*grid, 1, 1)[:3]](*args, *rest)
            return compiled

        return launch

    def _rest(self, given: int, options: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments behind the first `given`, in the function's order."""
        return tuple(options.get(param.name, param.default) for param in self._params[given:])

    def _key(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Equal where Triton takes the same compiled program; None where that is not known."""
        if len(args) < self._least:  # some are given by name
            return None
        found: list[Any] = [tuple(options.items())]
        for arg, constant in zip(args, self._constant, strict=False):
            if constant:
                found.append(arg)
            elif isinstance(arg, torch.Tensor):
                found.append((arg.dtype, arg.data_ptr() % 16 == 0))
            elif type(arg) is int:
                found.append((arg == 1, arg % 16 == 0, arg if abs(arg) >= 1 << 31 else 0))
            elif arg is None or type(arg) is float:
                found.append(type(arg))
            else:
                return None
        return tuple(found)


def quick_launches() -> None:
    """The V2 runner launches its programs through Triton. An engine's process serves one model: once that is loaded and
    turns out to be T5Gemma 2, a `QuickKernel` stands in the place of every program that a step launches.

    Unnecessary once Triton's launches are as quick.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def make(stock: Any) -> Any:
        def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
            stock(self, *args, **kwargs)
            if cross_kv_before_decoder(self):
                put_quick_kernels()

        return load_model

    replace(GPUModelRunner, "load_model", ("self", "load_dummy_weights", "args", "model", "kwargs"), make)


def put_quick_kernels() -> None:
    """Idempotent. Raises `HookError` where a module of vLLM launches nothing any more."""
    from triton.runtime.jit import JITFunction

    for name in MODULES:
        module = importlib.import_module(name)
        kernels = {k: v for k, v in vars(module).items() if k.endswith("_kernel")}
        if not kernels:
            raise HookError(f"{name} launches no Triton programs any more: see plugin/vllm_hooks")
        for attribute, kernel in kernels.items():
            if isinstance(kernel, JITFunction):
                setattr(module, attribute, QuickKernel(kernel))
