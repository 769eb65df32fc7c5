"""Where the engine runs on a CPU: what is set, what the user has set, and when vLLM's own placement stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.process import cpu_process
from app.process.cpu_process import MULTIPROCESSING, placement

NAMES = ("LD_PRELOAD", "KMP_BLOCKTIME", "OMP_NUM_THREADS", cpu_process.BINDING, MULTIPROCESSING)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No variable set, one memory node, three cores and a library."""
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what the code sets is undone afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(cpu_process, "NUMA_NODES", tmp_path)
    monkeypatch.setattr(cpu_process, "physical_cores", lambda: 3)
    monkeypatch.setattr(cpu_process, "intel_openmp", lambda: Path("/lib/libiomp5.so"))
    (tmp_path / "node0").mkdir()
    return tmp_path


def test_within_the_engine_process() -> None:
    with placement(True, 1) as arguments:
        assert arguments == {"distributed_executor_backend": "uni"}
        assert os.environ[MULTIPROCESSING] == "0"
    assert MULTIPROCESSING not in os.environ
    left = {name: os.environ.get(name) for name in NAMES[:3]}
    assert left == {"LD_PRELOAD": "/lib/libiomp5.so", "KMP_BLOCKTIME": "1", "OMP_NUM_THREADS": "3"}


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"LD_PRELOAD": "/x/libgomp.so.1", "OMP_NUM_THREADS": "7", MULTIPROCESSING: "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with placement(True, 1) as arguments:
        assert arguments
    assert {name: os.environ[name] for name in given} == given
    assert "KMP_BLOCKTIME" not in os.environ


def test_beside_another_preloaded_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/opt/compat/libtcmalloc.so")
    with placement(True, 1):
        assert os.environ["LD_PRELOAD"] == "/opt/compat/libtcmalloc.so:/lib/libiomp5.so"


@pytest.mark.parametrize("name", ["libgomp.so.1", "libgomp-abc.so", "libomp.so", "libiomp5.so"])
def test_beside_another_openmp(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LD_PRELOAD", f"/x/{name}:/y/libtcmalloc.so")
    with placement(True, 1):
        assert os.environ["LD_PRELOAD"] == f"/x/{name}:/y/libtcmalloc.so"


def test_a_path_that_cannot_be_preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LD_PRELOAD is split at spaces and colons."""
    monkeypatch.undo()
    for folder, usable in (("plain", True), ("my env", False), ("a:b", False)):
        library = tmp_path / folder / "libiomp5.so"
        library.parent.mkdir()
        library.touch()
        file = SimpleNamespace(name="libiomp5.so", locate=lambda library=library: library)
        with monkeypatch.context() as patch:
            patch.setattr(cpu_process.metadata, "files", lambda _, file=file: [file])
            assert (cpu_process.intel_openmp() is not None) == usable


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_process, "intel_openmp", lambda: None)
    with placement(True, 1) as arguments:
        assert arguments and "LD_PRELOAD" not in os.environ


def test_vllms_own_placement_stays(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, several engines, chosen cores, several memory nodes."""

    def untouched(on_cpu: bool = True, engines: int = 1) -> bool:
        before = dict(os.environ)
        with placement(on_cpu, engines) as arguments:
            return arguments == {} and dict(os.environ) == before

    assert untouched(on_cpu=False)
    assert untouched(engines=2)
    monkeypatch.setenv(cpu_process.BINDING, "0-1")
    assert untouched()
    monkeypatch.setenv(cpu_process.BINDING, "nobind")
    assert not untouched()
    (clean / "node1").mkdir()
    assert untouched()


def test_the_library_of_the_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the lock installs is where this looks for it."""
    monkeypatch.undo()
    library = cpu_process.intel_openmp()
    assert library is not None and library.is_file()


def test_hyperthreads_are_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(cpu_process, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4}, raising=False)
    assert cpu_process.physical_cores() == 3  # nothing to read
    for number, siblings in ((0, "0,4"), (1, "1,5"), (4, "0,4")):
        file = tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(siblings)
    assert cpu_process.physical_cores() == 2
