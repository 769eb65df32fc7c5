"""How the engine's processes lie on a CPU: vLLM's own placement, and a better one for an ordinary machine.

vLLM 0.32 runs the model on a CPU in a worker process beside the engine's, which spins while it waits for the worker;
one core is set aside for that. On a machine of few cores this costs more than it brings. Here the worker runs within
the engine's process, with all cores and Intel's OpenMP, which the CPU build installs and asks for, but does not load.

Unnecessary once vLLM's CPU platform allows the executor "uni" under a multiprocessing engine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final

NUMA_NODES: Final = Path("/sys/devices/system/node")
CPUS: Final = Path("/sys/devices/system/cpu")
BINDING: Final = "VLLM_CPU_OMP_THREADS_BIND"
MULTIPROCESSING: Final = "VLLM_ENABLE_V1_MULTIPROCESSING"
_OPENMP: Final = re.compile(r"\blib[gi]?omp[^/:]*\.so")
BLOCK_TIME_MS: Final = "1"
"""How long an OpenMP thread spins for work; the gateway's own process needs the cores between two steps."""


@contextmanager
def placement(on_cpu: bool, data_parallel_size: int) -> Iterator[dict[str, Any]]:
    """The engine arguments of the better placement. None where vLLM's own is right: elsewhere than on a CPU, with
    several memory nodes or engines, or with cores chosen by `VLLM_CPU_OMP_THREADS_BIND`.

    vLLM's config must be created inside the block: there its CPU platform lets the executor be. What OpenMP reads stays
    in the environment for the engine's process, unless the user has set it.
    """
    if not openmp(on_cpu, data_parallel_size):
        yield {}
        return
    before = os.environ.get(MULTIPROCESSING)
    os.environ[MULTIPROCESSING] = "0"
    try:
        yield {"distributed_executor_backend": "uni"}
    finally:
        if before is None:
            del os.environ[MULTIPROCESSING]
        else:
            os.environ[MULTIPROCESSING] = before


def openmp(on_cpu: bool, data_parallel_size: int) -> bool:
    """Whether the better placement is to be; then OpenMP's environment is set for processes that start from now on."""
    chosen = os.environ.get(BINDING, "auto") not in ("auto", "nobind")
    if not on_cpu or data_parallel_size > 1 or memory_nodes() > 1 or chosen:
        return False
    library = intel_openmp()
    preloaded = os.environ.get("LD_PRELOAD", "")
    if library is not None and not _OPENMP.search(preloaded):
        os.environ["LD_PRELOAD"] = f"{preloaded}:{library}".strip(":")
        os.environ.setdefault("KMP_BLOCKTIME", BLOCK_TIME_MS)
    os.environ.setdefault("OMP_NUM_THREADS", str(physical_cores()))
    return True


def cpu_build() -> bool:
    """Whether the installed vLLM is one for CPUs, as vLLM asks itself, but before it is imported."""
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return True


def memory_nodes() -> int:
    """NUMA nodes of the machine; 1 where it does not say."""
    return max(1, len(list(NUMA_NODES.glob("node[0-9]*"))))


def physical_cores() -> int:
    """Cores that this process may use, hyperthreads not counted twice where the machine tells them apart."""
    allowed = os.sched_getaffinity(0)
    try:
        return len({(CPUS / f"cpu{n}/topology/thread_siblings_list").read_text() for n in allowed})
    except OSError:
        return len(allowed)


def intel_openmp() -> Path | None:
    """libiomp5.so of the distribution intel-openmp, if it is installed where LD_PRELOAD can name it."""
    try:
        files = metadata.files("intel-openmp") or []
    except metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())).resolve() for file in files if file.name == "libiomp5.so")
    return next((path for path in found if path.is_file() and not re.search(r"[\s:]", str(path))), None)
