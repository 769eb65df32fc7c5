"""The engine's processes out of the fork server: environment, who chooses, what the fork server holds."""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

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

IMPORTED = """
import threading
import plugin.engine_imports, torch
assert threading.active_count() == 1, threading.enumerate()
assert not torch.cuda.is_initialized()
print("nothing begun")
"""


def test_environment_of_its_start_and_imports_of_the_fork_server(tmp_path: Path) -> None:
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
