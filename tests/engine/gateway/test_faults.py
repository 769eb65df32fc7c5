"""What goes wrong under the real server, with the real engine: it ends, or goes on, as docs/operations.md says.

Seconds are measured from the cause to the end of the last process. On idle cores they are below 5; `SOON_S` is for a
machine that has more to do. The same over a fake engine, in more ways: `tests/app/test_server.py`.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest

from plugin.drafts.checkpoint import DEMO
from tests.engine.gateway.process import START_S, GatewayProcess, gateway
from tests.engine.gateway.requests import PROMPT
from tests.pipes import fill
from tests.signals import HEARING

pytestmark = pytest.mark.engine

SOON_S: Final = 15.0
GRACE_S: Final = 100
"""Of running requests: more than a test waits, so that nothing ends by it."""
CODES: Final = {
    signal.SIGTERM: (0, -signal.SIGTERM),
    signal.SIGINT: (0, -signal.SIGINT, 128 + signal.SIGINT),
    signal.SIGHUP: (0, -signal.SIGTERM),
}
STAGES: Final = ("import", "load", "warm-up", "ready", "streaming", "draining")
IN_THE_SUITE: Final = {
    ("import", signal.SIGTERM),
    ("import", signal.SIGINT),
    ("import", signal.SIGHUP),
    ("load", signal.SIGINT),
    ("warm-up", signal.SIGHUP),
}
"""With the second Ctrl-C of `test_a_full_disk_for_the_log`; all others are slow."""


def _mounting() -> bool:
    """Whether a file system of one's own can be mounted here, as root or in a namespace."""
    try:
        return (
            subprocess.run(
                [*IN_NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
            ).returncode
            == 0
        )
    except FileNotFoundError:
        return False


IN_NAMESPACE: Final = ("unshare", "--map-root-user", "--mount")
FULL: Final = 'mount -t tmpfs -o size=64k none "$HOME"; ! cat /dev/zero > "$HOME/full" 2> /dev/null'
READ_ONLY: Final = 'mount -t tmpfs -o ro none "$HOME"'
needs_mount = pytest.mark.skipif(not _mounting(), reason="unshare or mount is not allowed here")


def until(server: GatewayProcess, true: Callable[[], bool]) -> None:
    """Waits for it while the server lives."""
    deadline = time.monotonic() + START_S
    while not true():
        assert server.process.poll() is None and time.monotonic() < deadline, server.log()[-4000:]
        time.sleep(0.02)


def imports_ahead(server: GatewayProcess) -> bool:
    """Whether the process that imports for the engine is out of the group's reach: in its first 0.1 s a signal to the
    group ends it with Python's own words.
    """
    for process in server.processes():
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) != server.process.pid:
                return True
    return False


def gone(server: GatewayProcess, since: float) -> int:
    """The exit code, once no process is left, which must be soon."""
    code = server.process.wait(60)
    psutil.wait_procs(server.processes(), timeout=60)
    seconds = time.monotonic() - since
    print(f"all gone after {seconds:.2f} s")
    assert not server.processes() and seconds < SOON_S, (seconds, server.processes())
    return code


@contextmanager
def streaming(server: GatewayProcess, tokens: int = 2000) -> Iterator[Iterator[str]]:
    """The parts of a stream that has begun, by default one that lasts."""
    body = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as reply:
        parts = reply.iter_text()
        next(parts)
        yield parts


def assert_broken_off(text: str) -> None:
    """The end of a stream that the server could not go on with."""
    assert '"code": 503' in text and text.endswith("data: [DONE]\n\n"), text[-500:]


@needs_mount
@pytest.mark.parametrize(
    ("family", "home", "complaint"),
    [("dspark", FULL, "No space left on device"), ("dflare", READ_ONLY, "Read-only file system")],
    ids=["dspark-full", "dflare-read-only"],
)
def test_the_engine_is_killed_and_caches_cannot_be_written(
    family: str, home: str, complaint: str, tmp_path: Path
) -> None:
    """Nothing can be written to HOME: served all the same. The engine is killed in mid-stream: the client is told, the
    process ends with an error.
    """
    with gateway(
        {
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": f"{tmp_path}/.cache",
            "XDG_CONFIG_HOME": f"{tmp_path}/.config",
        },
        within=(*IN_NAMESPACE, "sh", "-ec", f'{home}; exec "$@"', "sh"),
        model=Path(DEMO, family),
        warm_up="false",
    ) as server:
        assert complaint in server.log()
        assert server.text(PROMPT, max_tokens=64).endswith("The average speed is 30 miles per hour.")
        with streaming(server) as parts:
            killed = time.monotonic()
            server.core().kill()
            assert_broken_off("".join(parts))
        assert gone(server, killed) == 1
        assert "the engine died" in server.log()


def test_the_engine_has_no_memory_left() -> None:
    """It may not map another page: a step fails, every stream is told, and the process ends with an error."""
    with gateway(warm_up="false", max_encoder_len=1024) as server:
        with streaming(server) as parts:
            core = server.core()
            size = core.memory_info().vms
            core.rlimit(resource.RLIMIT_AS, (size, size))
            failed = time.monotonic()
            reply = server.complete([[5] * 1000] * 16, max_tokens=64)
            assert reply.status_code == 503, reply.text
            assert_broken_off("".join(parts))
        assert gone(server, failed) == 1
        assert "the engine died" in server.log()


def test_a_full_disk_for_the_log() -> None:
    """The start goes on without its lines. Ctrl-C in a terminal, which every process of the group gets, lets the stream
    go on; a second one ends it at once.
    """
    with gateway(
        out="/dev/full",
        within=HEARING,
        model=Path(DEMO, "verifier"),
        warm_up="false",
        shutdown_grace_s=GRACE_S,
    ) as server:
        with streaming(server) as parts:
            os.killpg(server.process.pid, signal.SIGINT)
            going_on = time.monotonic() + 1
            while time.monotonic() < going_on:
                assert "error" not in next(parts)
            asked = time.monotonic()
            os.killpg(server.process.pid, signal.SIGINT)
            assert_broken_off("".join(parts))
        assert gone(server, asked) in CODES[signal.SIGINT]


def test_a_log_that_is_never_read() -> None:
    """Its pipe is full before the start. All lines that vLLM has, one for every request, and more from the engine's
    process than a pipe holds: none of it holds up an answer, a probe or the end.
    """
    reader, writer = os.pipe()
    fill(writer)
    with (
        os.fdopen(reader, "rb"),
        os.fdopen(writer, "wb"),
        gateway(
            {"VLLM_LOGGING_LEVEL": "DEBUG"},
            out=f"/dev/fd/{writer}",
            model=Path(DEMO, "dflash"),
            warm_up="false",
        ) as server,
    ):
        for _ in range(100):
            assert server.complete(PROMPT, max_tokens=4).status_code == 200
        for descriptor in (1, 2):
            with open(f"/proc/{server.core().pid}/fd/{descriptor}", "wb") as output:
                output.write(b"a line of the engine\n" * 10_000)
        assert server.text(PROMPT, max_tokens=64).endswith("The average speed is 30 miles per hour.")
        assert server.client.get("/health").status_code == 200
        asked = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert gone(server, asked) in CODES[signal.SIGTERM]


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        pytest.param(
            stage,
            number,
            id=f"{stage}-{number.name}",
            marks=() if (stage, number) in IN_THE_SUITE else pytest.mark.slow,
        )
        for stage in STAGES
        for number in CODES
    ],
)
def test_signal(stage: str, number: signal.Signals) -> None:
    """To the whole group, as a terminal and some supervisors send it: all processes end, and the code is a signal's,
    not that of a failure. A stream goes on until a second signal.
    """
    with gateway(within=HEARING, waits=False, shutdown_grace_s=GRACE_S) as server:

        def send() -> float:
            os.killpg(server.process.pid, number)
            return time.monotonic()

        if stage in ("streaming", "draining"):
            server.wait()
            with streaming(server, 2000 if stage == "draining" else 250) as parts:
                asked = send()
                if stage == "draining":
                    until(server, lambda: "draining" in server.log())
                    asked = send()
                    assert_broken_off("".join(parts))
                else:
                    text = "".join(parts)
                    assert '"finish_reason":"length"' in text and text.endswith("data: [DONE]\n\n")
                    asked = time.monotonic()
        else:
            until(server, lambda: f"] {stage}:" in server.log() and imports_ahead(server))
            asked = send()
        assert gone(server, asked) in CODES[number]
        # SIGHUP ends Python's resource tracker; the next one is told to forget what it has never known, and says so.
        noise = ("the engine died", "nanobind", *(["Traceback"] if number != signal.SIGHUP else []))
        assert not [words for words in noise if words in server.log()], server.log()
