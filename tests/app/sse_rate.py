"""How many server-sent events a second of one core the gateway sends, over a fake engine and a real socket.

    python -m tests.app.sse_rate [--streams 32] [--events 2000]

The server runs in a process of its own and the rate counts that process's CPU time, so a slow client does
not count against it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def read(port: int, events: int) -> int:
    """One stream, read raw; the number of its events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": "Hi", "max_tokens": events, "stream": True}).encode()
    lines = (
        "POST /v1/completions HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        "Connection: close",
    )
    writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    count = 0
    while data := await reader.read(1 << 16):
        count += data.count(b"data: {")
    writer.close()
    return count


async def measure(port: int, pid: int, streams: int, events: int) -> tuple[int, float]:
    await read(port, 100)
    before = cpu_seconds(pid)
    counts = await asyncio.gather(*[read(port, events) for _ in range(streams)])
    return sum(counts), cpu_seconds(pid) - before


def rate(streams: int, events: int) -> float:
    """Starts a server, reads all streams at once, and gives its events per CPU second."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fake = {"max_model_len": events + 1, "length": events}
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "uvicorn",
            "tests.app.fake_server:app",
            "--port",
            str(port),
            "--no-access-log",
        ],
        env={**os.environ, "FAKE": json.dumps(fake)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_ready(port)
        count, seconds = asyncio.run(measure(port, server.pid, streams, events))
    finally:
        server.terminate()
        server.wait()
    assert count == streams * events, f"{count} events for {streams * events} tokens"
    return count / seconds


def wait_until_ready(port: int) -> None:
    """Until the server answers /ready with 200; TimeoutError after 20 s."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1),
        ):
            return
        time.sleep(0.05)
    raise TimeoutError("the server did not become ready")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--events", type=int, default=2000)
    arguments = parser.parse_args()
    print(f"{rate(arguments.streams, arguments.events):.0f} events per CPU second")


if __name__ == "__main__":
    main()
