"""A launch is known again exactly where Triton would take the same compiled program."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from plugin.vllm_hooks import quick_launch
from plugin.vllm_hooks.hook import HookError
from plugin.vllm_hooks.quick_launch import MODULES, QuickKernel, put_quick_kernels, quick_launches


class Kernel:
    """A `triton.jit` function `(p_in, p_out, count, scale, WIDTH, FLAG=False)` that tells what is launched how."""

    def __init__(self):
        self.told = []
        self.params = [
            SimpleNamespace(name=name, is_constexpr=name.isupper(), default=False)
            for name in ("p_in", "p_out", "count", "scale", "WIDTH", "FLAG")
        ]

    def __getitem__(self, grid):
        def compile_and_launch(*args, **options):
            number = sum(one[0] == "triton" for one in self.told)
            self.told.append(("triton", grid, args, options))
            return Compiled(self.told, number)

        return compile_and_launch


class Compiled:
    def __init__(self, told, number):
        self.told, self.number = told, number

    def __getitem__(self, grid):
        return lambda *args: self.told.append((self.number, grid, args))


@pytest.fixture
def quick():
    return QuickKernel(Kernel())


def launched(quick, *args, grid=(3,), **options):
    quick[grid](*args, **options)
    return quick.kernel.told[-1]


WIDE = torch.zeros(64)
ARGS = (WIDE, WIDE[16:], 48, 0.5)


def test_a_launch_of_the_same_kind_goes_to_the_compiled_program_with_all_arguments_in_order(quick):
    assert launched(quick, *ARGS, WIDTH=8, num_warps=2)[0] == "triton"
    other = (torch.zeros(4), None or WIDE[32:], 160, 0.25)
    number, grid, args = launched(quick, *other, WIDTH=8, num_warps=2, grid=(5, 2))
    assert (number, grid) == (0, (5, 2, 1))
    assert [type(arg) for arg in args[:2]] == [torch.Tensor] * 2
    assert args[0] is other[0]
    assert args[2:] == (160, 0.25, 8, False)


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((WIDE[1:], *ARGS[1:]), {}),  # an address that 16 does not divide
        ((WIDE.double(), *ARGS[1:]), {}),
        ((None, *ARGS[1:]), {}),
        ((*ARGS[:2], 47, 0.5), {}),
        ((*ARGS[:2], 1, 0.5), {}),
        ((*ARGS[:2], 1 << 40, 0.5), {}),
        (ARGS, {"WIDTH": 16}),
        (ARGS, {"FLAG": True}),
        (ARGS, {"num_warps": 4}),
        ((*ARGS, 9), {"WIDTH": None}),  # a constant by position
    ],
)
def test_what_triton_compiles_anew_is_compiled_anew_and_then_known(quick, args, options):
    options = {k: v for k, v in {"WIDTH": 8, "num_warps": 2, **options}.items() if v is not None}
    launched(quick, *ARGS, WIDTH=8, num_warps=2)
    assert launched(quick, *args, **options)[0] == "triton"
    assert launched(quick, *args, **options)[0] == 1
    assert launched(quick, *ARGS, WIDTH=8, num_warps=2)[0] == 0


@pytest.mark.parametrize("args", [(*ARGS[:2], True, 0.5), (*ARGS[:2], "48", 0.5), ARGS[:3]])
def test_arguments_of_other_kinds_are_tritons_own_business(quick, args):
    for _ in range(2):
        assert launched(quick, *args, WIDTH=8)[0] == "triton"


def test_every_module_launches_programs_and_has_them_replaced_once(monkeypatch):
    from triton.runtime.jit import JITFunction

    found = {name: dict(vars(importlib.import_module(name))) for name in MODULES}
    monkeypatch.setattr(quick_launch, "QuickKernel", lambda kernel: ("quick", kernel))
    set_to = {}
    monkeypatch.setattr(
        quick_launch, "setattr", lambda module, name, value: set_to.__setitem__(name, value), raising=False
    )
    put_quick_kernels()
    wanted = {
        name for names in found.values() for name, value in names.items()
        if name.endswith("_kernel") and isinstance(value, JITFunction)
    }  # fmt: skip
    assert set(set_to) == wanted
    monkeypatch.setattr(quick_launch, "MODULES", ("json",))
    with pytest.raises(HookError, match="json launches no Triton programs"):
        put_quick_kernels()


@pytest.mark.parametrize(("state", "times"), [({"cross_kv_before_decoder": True}, 1), ({}, 0)])
def test_only_t5gemma_2s_engine_has_them(monkeypatch, state, times):
    module = ModuleType("vllm.v1.worker.gpu.model_runner")

    class GPUModelRunner:
        def load_model(self, load_dummy_weights=False, *args, model=None, **kwargs):
            self.model_state = SimpleNamespace(**state)

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(sys.modules, module.__name__, module)
    put = []
    monkeypatch.setattr(quick_launch, "put_quick_kernels", lambda: put.append(1))
    quick_launches()
    GPUModelRunner().load_model()
    assert len(put) == times


@pytest.mark.gpu
def test_gpu_launches_do_what_tritons_do():
    """The same sums for addresses, lengths and constants that Triton compiles differently, each launched twice."""
    from vllm.v1.worker.gpu import input_batch

    kernel = input_batch._prepare_pos_seq_lens_kernel
    quick = kernel if isinstance(kernel, QuickKernel) else QuickKernel(kernel)
    for offset in (0, 1, 0, 2):
        for rows in (16, 7, 1):
            slots = torch.arange(rows + offset, device="cuda")[offset:] - offset
            bounds = 3 * torch.arange(rows + 1, device="cuda", dtype=torch.int32)
            computed = torch.arange(100, 100 + rows, device="cuda", dtype=torch.int32)
            positions = torch.full((3 * rows,), -1, device="cuda")
            lengths = torch.full((rows + 2,), -1, device="cuda", dtype=torch.int32)
            for _ in range(2):
                quick[(rows + 1,)](
                    positions, lengths, slots, bounds, computed, lengths.shape[0], BLOCK_SIZE=1024
                )
            want = (computed[:, None] + torch.arange(3, device="cuda")).flatten().long()
            assert torch.equal(positions, want)
            assert lengths.tolist() == [*(computed + 3).tolist(), 0, 0]
