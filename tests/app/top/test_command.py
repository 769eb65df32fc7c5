"""`t5gemma2 top` as it is called: its flags, its exit codes, and its JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from app import cli
from app.bench.servers import free_port
from app.top.entry import watch
from app.top.server import Server
from tests.app.conftest import build
from tests.app.fake_engine import FakeEngine
from tests.app.top.stub import READY, SERIES, client_of, console, printed, table
from tests.app.web_server import WebServer
from tests.signals import HEARING

ROOT = Path(__file__).parents[3]


def arguments(**changed: Any) -> argparse.Namespace:
    chosen = {"url": "http://server", "once": True, "json": False, "interval": 0.001, **changed}
    return argparse.Namespace(**chosen)


async def run(replies: dict[str, Any], **changed: Any) -> tuple[int, str]:
    """Exit code and output of a console in memory."""
    on = console()
    async with client_of(replies) as client:
        code = await watch(Server(client), arguments(**changed), on)
    return code, printed(on)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def seen_since(on: Console, before: int, words: str) -> bool:
    return words in printed(on)[before:]


@pytest.mark.anyio
async def test_one_picture() -> None:
    """Of two looks, since a rate needs two."""
    code, picture = await run(table())
    assert code == 0 and picture.count("t5gemma2 top · http://server") == 1 and "0.0 ▁" in picture


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (httpx.Response(503, json={**READY, "phase": "loading"}), "loading"),
        (httpx.Response(503, json={**READY, "phase": "draining"}), "draining"),
        (httpx.ConnectError("refused"), "unreachable"),
    ],
)
async def test_exit_code_of_a_server_that_does_not_serve(reply: Any, state: str) -> None:
    code, picture = await run(table(ready=reply))
    assert code == 1 and state in picture
    code, line = await run(table(ready=reply), json=True)
    assert code == 1 and json.loads(line)["state"] == state


@pytest.mark.anyio
async def test_json() -> None:
    """Every field that docs/metrics.md names, and no other."""
    code, line = await run(table(), json=True)
    told = json.loads(line)
    assert code == 0 and line.count("\n") == 1
    section = (ROOT / "docs/metrics.md").read_text().split("## `t5gemma2 top`")[1].split("\n## ")[0]
    named = [re.findall("`(.+?)`", row) for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)]
    assert list(told) == [name for row in named for name in row]
    assert (told["format"], told["url"], told["state"], told["reason"]) == (1, "http://server", "ready", None)
    assert told["tokens_per_second"] == 0.0 and told["acceptance_rate"] is None
    assert told["requests"] == {"running": 4, "waiting": 2, "in_flight": 6}
    assert told["stats"]["encoder"]["hits"] == 3 and told["drafts"]["draft"] == "my-draft"


@pytest.mark.anyio
async def test_json_of_a_server_that_cannot_be_asked() -> None:
    _, line = await run({"ready": httpx.ConnectError("refused")}, json=True)
    told = json.loads(line)
    assert told["reason"] == "ConnectError: refused"
    assert told["requests"] == {"running": None, "waiting": None, "in_flight": None}
    assert told["stats"] is told["drafts"] is told["seconds"] is None


@pytest.mark.anyio
@pytest.mark.parametrize("as_json", [False, True])
async def test_it_goes_on_trying(as_json: bool) -> None:
    """A server that goes and comes back is followed, in what is piped as well."""
    replies, on = table(), console()
    async with client_of(replies) as client:
        watching = asyncio.create_task(watch(Server(client), arguments(once=False, json=as_json), on))
        states = ("ready", "unreachable", "ready")
        for state, reply in zip(states, (READY, httpx.ConnectError("gone"), READY), strict=True):
            replies["ready"], before = reply, len(printed(on))
            await until(partial(seen_since, on, before, state))
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching


@pytest.mark.anyio
async def test_on_a_terminal() -> None:
    """Its own screen, which is given back at the end."""
    on = console(force_terminal=True, height=40)
    async with client_of(table()) as client:
        watching = asyncio.create_task(watch(Server(client), arguments(once=False), on))
        await until(lambda: printed(on).count("t5gemma2 top") >= 3)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert printed(on).count("\x1b[?1049h") == printed(on).count("\x1b[?1049l") == 1


@pytest.mark.anyio
async def test_rates_follow_the_counters() -> None:
    replies, on = table(), console()
    async with client_of(replies) as client:
        watching = asyncio.create_task(watch(Server(client), arguments(once=False, json=True), on))
        for generated in range(1000, 3000, 100):
            replies["metrics"] = httpx.Response(200, text=SERIES % generated)
            await asyncio.sleep(0.001)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    rates = [json.loads(line)["tokens_per_second"] for line in printed(on).splitlines()]
    assert rates[0] is None and max(rate or 0.0 for rate in rates) > 0


def test_a_running_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command over a socket, with the key of the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    with WebServer(build(FakeEngine(k=3), api_keys="sesame")) as url, pytest.raises(SystemExit) as ended:
        cli.main(["top", f"{url}/v1", "--once", "--json", "--interval", "0.1"])
    told = json.loads(capsys.readouterr().out)
    assert (ended.value.code, told["state"], told["url"]) == (0, "ready", url)


def test_the_address_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["top", f"http://me:secret@localhost:{(port := free_port())}/path", "--once"])
    out = capsys.readouterr().out
    assert f"top · http://localhost:{port}/path ·" in out and "secret" not in out


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["top", f"localhost:{free_port()}", "--once"])
    assert ended.value.code == 1 and "unreachable: ConnectError" in capsys.readouterr().out


@pytest.mark.parametrize("url", ["ftp://server", "http://", "http://server:port"])
def test_no_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["top", url, "--once"])
    assert ended.value.code == 2 and url in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "x", "-1", "nan", "1e9"])
def test_no_interval(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["top", "--interval", interval])
    assert ended.value.code == 2 and "0.1 ... 3600" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals) -> None:
    """The exit code of an interruption and no traceback; in ASCII, too, where blocks have no place."""
    url = f"localhost:{free_port()}"
    command = [*HEARING, sys.executable, "-m", "app.cli", "top", url, "--interval", "0.1"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and "t5gemma2 top" in process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 130 and errors == ""
