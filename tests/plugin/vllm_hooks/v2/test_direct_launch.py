"""What Triton's launcher gives to its C function is what is given past it, but for addresses in the tensors' places."""

from types import SimpleNamespace

import pytest
import torch
import triton
from triton.backends.nvidia.driver import CudaLauncher

from plugin.vllm_hooks.v2.direct_launch import direct
from plugin.vllm_hooks.v2.quick_launch import QuickKernel
from tests.plugin.vllm_hooks.v2.triton_fakes import ARGS, WIDE, Compiled, Kernel, launched

STREAM = 0x57


@pytest.fixture
def launcher(monkeypatch):
    """`launcher(**changes)`: Triton's own of a compiled program, and what it gives to its C function."""
    driver = SimpleNamespace(get_current_device=lambda: 1, get_current_stream=lambda device: STREAM + device)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)

    def make(**changes):
        made, given = CudaLauncher.__new__(CudaLauncher), []
        values = {
            "gsan_enabled": False, "num_ctas": 1, "global_scratch_size": 0, "global_scratch_align": 1,
            "profile_scratch_size": 0, "profile_scratch_align": 1, "launch_cooperative_grid": False, "launch_pdl": True,
            "arg_annotations": ["pointer"], "kernel_signature": b"p", "launch": lambda *args: given.append(args),
        }  # fmt: skip
        vars(made).update({**values, **changes})
        return made, given

    return make


def test_a_known_program_is_launched_as_tritons_launcher_does_it_but_with_addresses(launcher):
    made, given = launcher()
    quick = QuickKernel(Kernel(made))
    launched(quick, *ARGS, WIDTH=8)
    assert given == []  # the first launch is Triton's; what its launcher gives is seen on a copy
    for args in (ARGS, (WIDE[16:], WIDE, 48, 0.5)):
        launched(quick, *args, WIDTH=8, grid=(5, 2))
        program = Compiled.function, Compiled.packed_metadata
        made(5, 2, 1, STREAM + 1, *program, None, None, None, *args, 8, False)
        ours, tritons = given[-2:]
        assert ours[:-1] == tritons[:-1]
        assert list(ours[-1]) == [*(a.data_ptr() for a in args[:2]), *args[2:], 8, False]
        assert all(one is other for one, other in zip(tritons[-1], (*args, 8, False), strict=True))
    assert len(quick.kernel.told) == 1


@pytest.mark.parametrize(
    "changes", [{"global_scratch_size": 64}, {"profile_scratch_size": 64}, {"launch": None}], ids=str
)
def test_a_program_with_scratch_memory_or_another_launcher_goes_through_triton(launcher, changes):
    made, given = launcher(**changes)
    quick = QuickKernel(Kernel(made))
    launched(quick, *ARGS, WIDTH=8)
    assert launched(quick, *ARGS, WIDTH=8)[:2] == (0, (3, 1, 1))
    assert given == []


def test_a_launcher_that_passes_something_else_to_its_function_is_left_alone(launcher):
    class Flat:
        """As Triton's was once: the program's arguments at the end, each on its own."""

        launch, num_ctas = print, 1

        def __call__(self, *args):
            self.launch(*args)

    launcher()
    assert direct(Compiled([], 0, Flat())) is None
    assert direct(Compiled([], 0, None)) is None


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_profilers_that_want_to_be_told_of_launches_are(launcher, monkeypatch, hook):
    made, given = launcher()
    quick = QuickKernel(Kernel(made))
    launched(quick, *ARGS, WIDTH=8)
    chain = getattr(triton.knobs.runtime, hook)
    profiler = print
    chain.add(profiler)
    try:
        assert launched(quick, *ARGS, WIDTH=8)[0] == 0
    finally:
        chain.remove(profiler)
    monkeypatch.setattr(triton.knobs.runtime, hook, profiler)
    assert launched(quick, *ARGS, WIDTH=8)[0] == 0
    monkeypatch.setattr(triton.knobs.runtime, hook, None)
    launched(quick, *ARGS, WIDTH=8)
    assert len(given) == 1


@pytest.mark.gpu
def test_gpu_memory_of_the_host_and_none_are_passed_as_triton_passes_them():
    """Addresses that Triton would ask the driver for, of memory that the device reads across the bus; and none."""
    from vllm.v1.worker.gpu import input_batch
    from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor

    kernel = input_batch._post_update_kernel
    quick = QuickKernel(getattr(kernel, "kernel", kernel))
    rejected = UvaBackedTensor(2, dtype=torch.int32)
    rejected.np[:] = [1, 0]
    rejected.copy_to_uva()

    def whole(*values, dtype=torch.int32):
        return torch.tensor(values, device="cuda", dtype=dtype)

    for _ in range(3):
        computed, last = whole(10, 20, 30), whole(0, 0, 0, dtype=torch.int64)
        ids, total = torch.zeros((3, 40), dtype=torch.int32, device="cuda"), whole(11, 21, 31)
        quick[(2,)](
            whole(2, 0, dtype=torch.int64), computed, last, None, 0, whole([5, 6], [7, 8], dtype=torch.int64), 2,
            whole(1, 2), rejected.gpu, whole(0, 2, 4), ids, 40, total, num_warps=1,
        )  # fmt: skip
        assert computed.tolist() == [12, 20, 31]
        assert last.tolist() == [8, 0, 5]
        assert total.tolist() == [13, 21, 32]
        assert (ids[2, 31], *ids[0, 11:13]) == (5, 7, 8)
    assert all(launch for kind in quick._kinds.values() for _, _, launch in kind.compiled.values())
