"""A launch is known again exactly where Triton would take the same compiled program."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from plugin.vllm_hooks.hook import HookError
from plugin.vllm_hooks.v2 import quick_launch
from plugin.vllm_hooks.v2.quick_launch import MODULES, QuickKernel, put_quick_kernels, quick_launches
from tests.plugin.vllm_hooks.v2.triton_fakes import ARGS, WIDE, Kernel, launched


@pytest.fixture
def quick():
    return QuickKernel(Kernel())


def test_a_launch_of_the_same_kind_goes_to_the_compiled_program_with_all_arguments_in_order(quick):
    assert launched(quick, *ARGS, WIDTH=8, num_warps=2)[0] == "triton"
    other = (torch.zeros(4), WIDE[32:], 48, 0.5)
    number, grid, args = launched(quick, *other, WIDTH=8, num_warps=2, grid=(5, 2))
    assert (number, grid) == (0, (5, 2, 1))
    assert all(arg is one for arg, one in zip(args, other, strict=False))
    assert args[4:] == (8, False)


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((WIDE[1:], *ARGS[1:]), {}),  # an address that 16 does not divide
        ((WIDE, WIDE[1:], *ARGS[2:]), {}),
        ((WIDE.double(), *ARGS[1:]), {}),
        ((*ARGS[:2], 47, 0.5), {}),
        ((*ARGS[:2], 1, 0.5), {}),
        ((*ARGS[:2], 1 << 40, 0.5), {}),
        ((*ARGS[:2], 48.0, 0.5), {}),
        ((*ARGS[:2], None, 0.5), {}),
        ((None, *ARGS[1:]), {}),
        ((*ARGS[:2], WIDE, 0.5), {}),
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


def test_two_addresses_apart_from_16_are_not_taken_for_one_another(quick):
    for args in ((WIDE[1:], WIDE), (WIDE, WIDE[1:]), (WIDE[1:], WIDE[1:])):
        assert launched(quick, *args, *ARGS[2:], WIDTH=8)[0] == "triton"
    assert [
        launched(quick, a, b, *ARGS[2:], WIDTH=8)[0] for a, b in [(WIDE[3:], WIDE), (WIDE, WIDE[2:])]
    ] == [0, 1]


def test_arguments_by_name_are_tritons_own_business(quick):
    names = dict(zip(("p_in", "p_out", "count", "scale"), ARGS, strict=True))
    for _ in range(2):
        assert launched(quick, **names, WIDTH=8)[0] == "triton"
    assert not quick._kinds


def test_a_truth_value_is_not_taken_for_one(quick):
    for count in (1, True, 1.0):
        assert launched(quick, *ARGS[:2], count, 0.5, WIDTH=8)[0] == "triton"
    assert [launched(quick, *ARGS[:2], count, 0.5, WIDTH=8)[0] for count in (True, 1.0, 1)] == [1, 2, 0]


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((*ARGS[:2], "48", 0.5), {"WIDTH": 8}),
        ((*ARGS[:2], [48], 0.5), {"WIDTH": 8}),
        ((*ARGS, [8]), {}),
        (ARGS, {"WIDTH": [8]}),
        (ARGS[:3], {"WIDTH": 8}),
    ],
    ids=["text", "a list", "a constant", "a constant's name", "too few"],
)
def test_arguments_of_other_kinds_are_tritons_own_business(quick, args, options):
    launched(quick, *ARGS, WIDTH=8)
    for _ in range(2):
        assert launched(quick, *args, **options)[0] == "triton"
    assert launched(quick, *ARGS, WIDTH=8)[0] == 0


def test_no_more_launches_are_known_than_there_may_be(quick, monkeypatch):
    monkeypatch.setattr(quick_launch, "MOST", 2)
    for count in (3, 4, 5):
        launched(quick, *ARGS[:2], count, 0.5, WIDTH=8)
    assert [len(kind.compiled) for kind in quick._kinds.values()] == [1]
    assert launched(quick, *ARGS[:2], 5, 0.5, WIDTH=8)[0] == 2


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
    quick = QuickKernel(getattr(kernel, "kernel", kernel))
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
    assert all(launch for kind in quick._kinds.values() for _, _, launch in kind.compiled.values())
