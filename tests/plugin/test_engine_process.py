"""The engine's processes out of the fork server: environment, who chooses, what the fork server holds, their end."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from plugin import engine_process
from plugin.engine_process import METHOD, EngineContext
from plugin.vllm_hooks import processes

SCRIPT = """
import json, os, sys
from plugin import engine_process

def inner(pipe):
    pipe.send(os.environ.get("LATE"))

def told(pipe):
    here, there = engine_process.EngineContext().Pipe()
    process = engine_process.EngineContext().Process(target=inner, args=(there,), daemon=True)
    process.start()
    names = {"late": os.environ.get("LATE"), "gone": os.environ.get("GONE"), "inner": here.recv()}
    process.join()
    pipe.send({**names, "imported": "colorsys" in sys.modules})

if __name__ == "__main__":
    os.environ["GONE"] = "1"
    engine_process.IMPORTS = "colorsys"
    engine_process.import_ahead()
    del os.environ["GONE"]
    os.environ["LATE"] = "1"
    context = engine_process.EngineContext()
    here, there = context.Pipe()
    process = context.Process(target=told, args=(there,))
    process.start()
    print(json.dumps(here.recv()))
    process.join()
    sys.exit(process.exitcode)
"""

STARTER = """
import multiprocessing, signal, sys, time
from plugin import engine_process

def child(deaf):
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    engine_process.GRACE_S = 0.2
    engine_process.end_with_parent()
    print("watched", flush=True)
    time.sleep(60)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child, args=(sys.argv[1] == "deaf",))
    process.start()
    print(process.pid, flush=True)
    process.join()
"""

IMPORTED = """
import os, threading
import plugin.engine_imports, torch
assert threading.active_count() == 1, threading.enumerate()
assert not torch.cuda.is_initialized()
assert os.getpgrp() == os.getpid(), "Ctrl-C reaches it"
print("nothing begun")
"""


def test_environment_of_its_start_and_imports_of_the_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(METHOD, raising=False)  # tests of the engine choose one
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == {
        "late": "1",
        "gone": None,
        "inner": "1",
        "imported": True,
    }


def test_the_fork_server_holds_neither_threads_nor_a_device() -> None:
    """`-u`, since what is printed there is not flushed at its end."""
    ended = subprocess.run([sys.executable, "-u", "-c", IMPORTED], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["nothing begun"]), ended.stderr


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_chosen_method_stays(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METHOD, method)
    monkeypatch.setattr(engine_process, "ensure_running", lambda: pytest.fail("begun"))
    engine_process.import_ahead()
    assert engine_process._libraries is None


def test_vllm_gets_the_context_only_once_imports_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine import coordinator, utils
    from vllm.v1.executor import multiproc_executor

    processes.from_the_fork_server()
    monkeypatch.setenv(METHOD, "spawn")
    for module in (utils, coordinator, multiproc_executor):
        monkeypatch.setattr(engine_process, "_libraries", None)
        assert module.get_mp_context() is multiprocessing.get_context("spawn")
        monkeypatch.setattr(engine_process, "_libraries", (os.environ.get("LD_PRELOAD"),))
        assert isinstance(module.get_mp_context(), EngineContext)


def test_a_library_that_is_preloaded_later_needs_a_program_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.engine import utils

    processes.from_the_fork_server()
    monkeypatch.setenv(METHOD, "spawn")
    monkeypatch.setattr(engine_process, "_libraries", (None,))
    monkeypatch.setenv("LD_PRELOAD", "/lib/libtcmalloc.so")
    assert utils.get_mp_context() is multiprocessing.get_context("spawn")


@pytest.mark.parametrize("kind", ["plain", "deaf"])
def test_ends_with_the_process_that_started_it(kind: str, tmp_path) -> None:
    script = tmp_path / "starter.py"
    script.write_text(STARTER)
    with subprocess.Popen([sys.executable, str(script), kind], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = psutil.Process(int(starter.stdout.readline()))
        assert starter.stdout.readline() == "watched\n"
        assert (
            os.getpgid(child.pid) == child.pid != os.getpgid(starter.pid)
        )  # a terminal's signals pass it by
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        begun = time.monotonic()
        psutil.wait_procs([child], timeout=5)
        assert not child.is_running() and time.monotonic() - begun < 5


SLOW = """
import os, time
from pathlib import Path
from plugin import engine_process

def until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, true
        time.sleep(0.05)

if __name__ == "__main__":
    engine_process.end_imports()  # nothing has begun
    engine_process.IMPORTS = "slow_import"
    engine_process.import_ahead()
    until(Path(os.environ["BEGUN"]).exists)
    pid = int(Path(os.environ["BEGUN"]).read_text())
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    engine_process.end_imports()
    until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)
"""
SLOW_IMPORT = """
import os, time
from pathlib import Path

Path(os.environ["BEGUN"]).with_suffix(".new").write_text(str(os.getpid()))
Path(os.environ["BEGUN"]).with_suffix(".new").rename(os.environ["BEGUN"])
time.sleep(600)
"""


def test_imports_end_before_their_time(tmp_path) -> None:
    """They take up to minutes, in which the fork server hears of nothing."""
    (tmp_path / "slow_import.py").write_text(SLOW_IMPORT)
    (tmp_path / "script.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "BEGUN": str(tmp_path / "begun")}
    environment.pop(METHOD, None)
    script = [sys.executable, str(tmp_path / "script.py")]
    subprocess.run(script, env=environment, check=True, timeout=120)


def test_a_process_of_its_own_is_left_alone() -> None:
    engine_process.end_with_parent()
    assert not engine_process._watched
