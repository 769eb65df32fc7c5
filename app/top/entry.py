"""Runs `t5gemma2 top`: looks at the server, shows it, and waits, until it is interrupted."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live

from app.bench.client import http_client
from app.top.history import History
from app.top.picture import Picture
from app.top.server import TIMEOUT_S, Look, Server

FORMAT = 1
"""Of the JSON; another number when a field is renamed, dropped, or means something else."""


def top(arguments: argparse.Namespace) -> int:
    """The exit code: with `once` 0 while requests are served and 1 otherwise."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without block characters still has the numbers
    try:
        client = http_client(arguments.url, own=False)
    except httpx.InvalidURL as error:
        print(f"t5gemma2: {arguments.url}: {error}", file=sys.stderr)
        return 2
    client.timeout = httpx.Timeout(TIMEOUT_S)
    try:
        return asyncio.run(_run(client, arguments, Console(markup=False, emoji=False, highlight=False)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 128 + signal.SIGINT


async def _run(client: httpx.AsyncClient, arguments: argparse.Namespace, console: Console) -> int:
    task = asyncio.current_task()
    assert task is not None
    # As gentle as Ctrl-C: the terminal gets its own screen back.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with client:
        return await watch(Server(client), arguments, console)


async def watch(server: Server, arguments: argparse.Namespace, console: Console) -> int:
    """Shows the server until it is interrupted; with `arguments.once` one interval of it, and the exit code."""
    history, url = History(), _shown(arguments.url)
    if arguments.once:
        look = await _interval(server, history, arguments.interval)
        shown = to_json(url, look, history) if arguments.json else Picture(url, look, history)
        _show(console, shown)
        return 0 if look.state == "ready" else 1
    looks = _looks(server, history, arguments.interval)
    if arguments.json:
        async for look in looks:
            _show(console, to_json(url, look, history))
    elif not console.is_terminal or console.is_dumb_terminal:
        async for look in looks:
            _show(console, Picture(url, look, history))
            console.print()
    else:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            async for look in looks:
                live.update(Picture(url, look, history), refresh=True)
    return 0


async def _looks(server: Server, history: History, interval_s: float) -> AsyncIterator[Look]:
    while True:
        look = await server.look()
        history.add(look)
        yield look
        await asyncio.sleep(interval_s)


async def _interval(server: Server, history: History, interval_s: float) -> Look:
    """The second of two looks; the only one where nothing is served, of which there is no rate."""
    looks = _looks(server, history, interval_s)
    async for look in looks:
        if look.state != "ready" or history.tokens:
            break
    return look


def _show(console: Console, shown: Picture | dict[str, Any]) -> None:
    if isinstance(shown, Picture):
        console.print(shown)
    else:
        console.out(json.dumps(shown), highlight=False)


def _shown(url: str) -> str:
    """The address without a name and a password."""
    return str(httpx.URL(url).copy_with(userinfo=b"")).rstrip("/")


def to_json(url: str, look: Look, history: History) -> dict[str, Any]:
    """What --json prints; described in docs/metrics.md."""
    engine = look.engine
    return {
        "format": FORMAT,
        "url": url,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "state": look.state,
        "reason": look.reason,
        "stage": look.stage,
        "seconds": look.seconds,
        "tokens_per_second": history.tokens[-1] if history.tokens else None,
        "acceptance_rate": history.acceptance[-1] if history.acceptance else None,
        "requests": {name: engine.get(name) for name in ("running", "waiting", "in_flight")},
        "stats": look.stats and look.stats.model_dump(mode="json"),
        "drafts": look.drafts,
    }
