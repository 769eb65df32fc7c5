"""An engine's process does not outlive the server that started it, however that ended."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

STARTS = """
import multiprocessing, signal, sys, threading, time
from plugin import parent_watch

def engine(stubborn):
    parent_watch.GRACE_S = 0.2
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent_watch.end_with_parent()
    print("ready", flush=True)
    time.sleep(60)

if __name__ == "__main__":
    name, stubborn = sys.argv[1], sys.argv[2] == "stubborn"
    process = multiprocessing.get_context("spawn").Process(target=engine, args=(stubborn,), name=name)
    # As the gateway does it: the thread that starts the engine ends before the engine.
    starter = threading.Thread(target=process.start)
    starter.start()
    starter.join()
    print(process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("name", "how", "ends"),
    [
        ("EngineCore", "", True),
        ("EngineCore_DP1", "stubborn", True),
        ("SomethingElse", "", False),
    ],
)
def test_a_server_that_is_killed(
    tmp_path_factory: pytest.TempPathFactory, name: str, how: str, ends: bool
) -> None:
    """SIGTERM ends vLLM's engine; where that does nothing, force does. Other processes are left alone."""
    script = tmp_path_factory.mktemp("starts") / "starts.py"
    script.write_text(STARTS)
    server = subprocess.Popen([sys.executable, str(script), name, how], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    lines = {server.stdout.readline().strip(), server.stdout.readline().strip()}
    (pid,) = lines - {"ready"}
    engine = psutil.Process(int(pid))
    try:
        assert engine.is_running()
        server.send_signal(signal.SIGKILL)
        server.wait()
        _, left = psutil.wait_procs([engine], timeout=5 if ends else 1)
        assert bool(left) != ends
    finally:
        server.kill()
        if engine.is_running():
            engine.kill()
        server.stdout.close()
