"""Launches of Triton programs without Triton's own preparations. On the machine with the H200 one takes some 50 us on
the host, longer than its program on the GPU; a step like the last one has one besides its graph, one that admits
requests three, one that vLLM samples eight to thirteen.

Triton looks anew at every argument, builds its key as a string, goes through all options and prepares for profilers in
every call. Here a launch is known again by what Triton compiles for: types, values, and of addresses whether 16 divides
them.
"""

import importlib
from collections.abc import Callable, Hashable, Sequence
from functools import partial, reduce
from operator import attrgetter, itemgetter, or_
from typing import Any

import torch

from plugin.vllm_hooks.hook import HookError, replace
from plugin.vllm_hooks.v2.direct_launch import Direct, direct, profiled
from plugin.vllm_hooks.v2.runner import cross_kv_before_decoder

MODULES = (
    "vllm.v1.worker.gpu.input_batch",
    "vllm.v1.worker.gpu.block_table",
    "vllm.v1.worker.gpu.buffer_utils",
    "vllm.v1.worker.gpu.sample.gumbel",
    "vllm.v1.worker.gpu.spec_decode.dflash.speculator",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils",
    "plugin.attention.cross_write",
    "plugin.verifier.triton_greedy",
    "plugin.verifier.triton_step",
)
"""What launches programs in a step. Those that are launched are called `..._kernel`, those that they call are not."""


ADDRESS, DTYPE = torch.Tensor.data_ptr, attrgetter("dtype")
PLAIN = {int, float, bool, type(None)}
MOST = 4096
"""Launches that are known of one kind: in a step they differ in the number of requests, if at all."""


class QuickKernel:
    """Stands for a `triton.jit` function where that is launched: `kernel[grid](*args, **constants)`.

    Arguments by position are tensors and plain values, as all of vLLM's are; whatever else there is, and whatever has
    not been compiled yet, goes to Triton. A program that is known is launched by the C function behind Triton's
    launcher, which is given addresses: of a tensor it would ask the driver for its own.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._params = tuple(kernel.params)
        self._constant = tuple(bool(param.is_constexpr) for param in self._params)
        self._least = max((i for i, constant in enumerate(self._constant, 1) if not constant), default=0)
        self._kinds: dict[tuple[type, ...], Kind] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **options: Any) -> Any:
        kind = self._kinds.get(tuple(map(type, args)))
        if kind is None:
            kind = self._new_kind(args)
        if kind is None:
            return self.kernel[grid](*args, **options)
        key, addresses = kind.key(args, options)
        try:
            found = kind.compiled.get(key)
        except TypeError:  # a constant that has no hash
            return self.kernel[grid](*args, **options)
        if found is None:
            compiled = self.kernel[grid](*args, **options)
            # The arguments behind those by position, in the function's order.
            behind = (options.get(param.name, param.default) for param in self._params[len(args) :])
            kind.keep(key, (compiled, tuple(behind), direct(compiled)))
            return compiled
        compiled, rest, launch = found
        grid = (*grid, 1, 1)[:3]
        if launch is None or profiled():
            compiled[grid](*args, *rest)
        else:
            arguments = (*kind.in_order((*addresses, *args)), *rest)
            launch.function(*grid, launch.stream(launch.device), *launch.between, arguments)
        return compiled

    def _new_kind(self, args: tuple[Any, ...]) -> "Kind | None":
        """None for arguments that are Triton's own business."""
        plain = (
            isinstance(arg, torch.Tensor) or type(arg) in PLAIN or (constant and isinstance(arg, Hashable))
            for arg, constant in zip(args, self._constant, strict=False)
        )
        if len(args) < self._least or not all(plain):  # some are given by name, or others than tensors
            return None
        return self._kinds.setdefault(tuple(map(type, args)), Kind(args))


class Kind:
    """Launches whose arguments have the same types: at most `MOST` of them that are known.

    vLLM's longest launch has 31 arguments: what is done for each is done in C.
    """

    def __init__(self, args: tuple[Any, ...]) -> None:
        are_tensors = [isinstance(arg, torch.Tensor) for arg in args]
        tensors = [i for i, is_one in enumerate(are_tensors) if is_one]
        self._tensors = picker(tensors)
        self._others = picker([i for i, is_one in enumerate(are_tensors) if not is_one])
        at = iter(range(len(tensors)))
        self.in_order = picker(
            [next(at) if is_one else len(tensors) + i for i, is_one in enumerate(are_tensors)]
        )
        """Of the tensors' addresses and all arguments behind them: the arguments, with addresses for tensors."""
        self.compiled: dict[Any, tuple[Any, tuple[Any, ...], Direct | None]] = {}

    def key(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
        """What is equal only where Triton takes the same compiled program, and the tensors' addresses."""
        tensors = self._tensors(args)
        addresses = tuple(map(ADDRESS, tensors))
        apart = reduce(or_, addresses, 0) % 16 and tuple(at % 16 == 0 for at in addresses)
        return (tuple(map(DTYPE, tensors)), self._others(args), tuple(options.items()), apart), addresses

    def keep(self, key: Any, found: tuple[Any, tuple[Any, ...], Direct | None]) -> None:
        if len(self.compiled) >= MOST:
            self.compiled.clear()
        self.compiled[key] = found


def picker(positions: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What takes these of a tuple's items."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda items: tuple(items[i] for i in positions)


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
