"""A compiled Triton program launched past Triton's own Python, which in every launch looks up device and stream,
prepares what profilers might ask for and asks the driver about each address.
"""

import copy
from dataclasses import dataclass
from typing import Any

import triton


@dataclass(frozen=True, slots=True)
class Direct:
    """How a compiled program is launched past Triton's own Python.

    Attributes:
        function: Triton's in C: grid, stream, `between`, and then all arguments of the program in one tuple.
        between: what is the same in every launch.
        stream: the current stream's handle, given a device.
        device: where the program was loaded.
    """

    function: Any
    between: tuple[Any, ...]
    stream: Any
    device: int


def direct(compiled: Any) -> Direct | None:
    """Seen from what Triton's launcher gives to its C function; None for a launcher that does more than that."""
    launcher: Any = copy.copy(getattr(compiled, "run", None))
    function = getattr(launcher, "launch", None)
    if function is None or any(
        getattr(launcher, f"{kind}_scratch_size", 0) for kind in ("global", "profile")
    ):
        return None
    given: list[Any] = []
    launcher.launch = lambda *args: given.extend(args)
    grid, stream, args = (3, 5, 7), object(), (object(), object())
    launcher(*grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *args)
    if given[:4] != [*grid, stream] or given[-1:] != [args]:
        return None
    driver = triton.runtime.driver.active
    return Direct(function, tuple(given[4:-1]), driver.get_current_stream, driver.get_current_device())


def profiled() -> bool:
    """Whether a profiler wants to be told of launches."""
    runtime = triton.knobs.runtime
    # Either is a chain of calls, or whatever somebody has set in its place.
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))
