"""Servers of one's own: ready before they are measured, gone afterwards, whatever happens."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from app.bench import servers
from app.bench.arms import Arm
from app.bench.errors import BenchError
from app.bench.servers import environment, run_to_end, serving

ARM = Arm("dflash:3", "dflash", 3, None, (("DRAFT", "d"), ("K", "3"), ("MODEL", ""), ("VERIFIER", "")))


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "APPLICATION", "tests.app.bench.started:app")


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that its adopter has not collected yet counts as ended."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Not the server and not its child, after success as after an error."""
    monkeypatch.setenv("FORK", "1")
    log = tmp_path / "server.log"
    answered: list[int] = []

    async def main() -> None:
        async with serving(ARM, 6, log, 30) as url, httpx.AsyncClient(base_url=url) as client:
            answered.append((await client.get("/v1/models")).status_code)
            if fails:
                raise KeyError("measuring failed")

    if fails:
        with pytest.raises(KeyError):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert answered == [200]
    found = re.search(r"child (\d+) concurrency 6", log.read_text())
    assert found and gone(int(found[1]))


def test_nothing_is_left_running_after_sigterm(tmp_path: Path) -> None:
    log, mine = tmp_path / "server.log", os.getpid()

    async def main() -> None:
        async with serving(ARM, 1, log, 30):
            os.kill(mine, signal.SIGTERM)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        run_to_end(main())
    (pid,) = re.findall(r"Started server process \[(\d+)\]", log.read_text())
    assert gone(int(pid))


def test_a_server_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "1")

    async def main() -> None:
        async with serving(ARM, 1, tmp_path / "server.log", 30):
            pass

    with pytest.raises(BenchError, match=r"arm dflash:3: its server ended with 1: .*no such weights"):
        asyncio.run(main())


def test_a_server_that_is_never_ready(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(ARM, 1, tmp_path / "server.log", 0):
            pass

    with pytest.raises(BenchError, match=r"not ready after 0 s \(--start-timeout\)"):
        asyncio.run(main())


def test_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The arm's own variables win; others stay, and relative folders are made absolute."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drafts").mkdir()
    for name, value in {
        "DRAFT": "other",
        "API_KEYS": "k",
        "DTYPE": "float32",
        "CHECKPOINTS_DIR": "drafts",
    }.items():
        monkeypatch.setenv(f"T5GEMMA_{name}", value)
    made = environment(ARM, 4)
    assert (made["T5GEMMA_DRAFT"], made["T5GEMMA_K"], made["T5GEMMA_API_KEYS"]) == ("d", "3", "")
    assert (made["T5GEMMA_DTYPE"], made["T5GEMMA_MAX_NUM_SEQS"]) == ("float32", "4")
    assert made["T5GEMMA_CHECKPOINTS_DIR"] == str(tmp_path / "drafts")
    monkeypatch.setenv("T5GEMMA_MAX_NUM_SEQS", "2")
    assert environment(ARM, 4)["T5GEMMA_MAX_NUM_SEQS"] == "2"
    assert made["T5GEMMA_ENCODER_CACHE_BYTES"] == "0"  # unless the environment or the arm asks for it
    monkeypatch.setenv("T5GEMMA_ENCODER_CACHE_BYTES", "1000")
    assert environment(ARM, 4)["T5GEMMA_ENCODER_CACHE_BYTES"] == "1000"
    assert made["PYTHONPATH"].split(os.pathsep)[0] == str(Path(__file__).parents[3])
