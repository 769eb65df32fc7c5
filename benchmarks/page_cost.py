"""What an open live page costs a server: requests/s with and without it, and the CPU time of its questions.

    python -m benchmarks.page_cost http://127.0.0.1:8000 --pid PID [--rounds 12] [--seconds 8] [--clients 4]

A page asks `GET /ready` and `GET /drafts/stats` every two seconds and `GET /drafts` every half minute
(`app/page/watch.js`); here a thread asks the same, since a browser on the same machine would take cores of its own.
Rounds alternate: closed, open, open, closed, and so on, each with so many clients that send as fast as they are
answered. Some seconds of requests/s scatter by more than the effect, so the second figure is the one to go by: the
process's CPU time for 200 looks in a row at an idle server, over the two seconds that lie between two looks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

EVERY_S = 2.0
LOADED_EVERY = 15
LOOKS = 200
PROMPT = "A train travels 60 miles in 2 hours. What is its average speed?"


def look(client: httpx.Client, number: int) -> None:
    """What the page asks at one look."""
    client.get("/ready")
    client.get("/drafts/stats").raise_for_status()
    if number % LOADED_EVERY == 0:
        client.get("/drafts").raise_for_status()


def requests_per_second(url: str, clients: int, seconds: float, page: bool) -> float:
    """Completions of `clients` that send one after the other for so many seconds, with the page open or closed."""
    end = time.monotonic() + seconds
    counts = [0] * clients

    def send(i: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while time.monotonic() < end:
                body = {"prompt": PROMPT, "max_tokens": 64, "temperature": 0}
                client.post("/v1/completions", json=body).raise_for_status()
                counts[i] += 1

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            number = 0
            while time.monotonic() < end:
                look(client, number)
                number += 1
                time.sleep(max(0.0, min(EVERY_S, end - time.monotonic())))

    threads = [threading.Thread(target=send, args=(i,)) for i in range(clients)]
    threads += [threading.Thread(target=ask)] * page
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds_per_look(url: str, pid: int) -> float:
    """CPU seconds of the gateway's process for one look at an idle server."""
    with httpx.Client(base_url=url, timeout=60) as client:
        before = cpu_seconds(pid)
        for number in range(LOOKS):
            look(client, number)
        return (cpu_seconds(pid) - before) / LOOKS


def main(words: Sequence[str] | None = None) -> None:
    """Prints both figures."""
    flags = argparse.ArgumentParser(description="What an open live page costs a server.")
    flags.add_argument("url")
    flags.add_argument("--pid", type=int, required=True, help="the gateway's process")
    flags.add_argument("--rounds", type=int, default=12)
    flags.add_argument("--seconds", type=float, default=8)
    flags.add_argument("--clients", type=int, default=4)
    asked = flags.parse_args(words)
    requests_per_second(asked.url, asked.clients, 3, False)  # warms up
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(asked.rounds):
        page = number % 4 in (1, 2)
        found[page].append(requests_per_second(asked.url, asked.clients, asked.seconds, page))
    for page, rates in found.items():
        words_of = ", ".join(f"{rate:.2f}" for rate in sorted(rates))
        print(f"{'open' if page else 'closed'}: {statistics.median(rates):.2f} requests/s ({words_of})")
    ratio = statistics.median(found[True]) / statistics.median(found[False])
    print(f"open / closed: {ratio:.4f}")
    spent = cpu_seconds_per_look(asked.url, asked.pid)
    print(f"one look: {1000 * spent:.2f} ms of CPU, {spent / EVERY_S:.2%} of one core")


if __name__ == "__main__":
    main()
