"""`python -m tests.config.ray_replicas SCENARIO`: two replicas of `config/ray/serve_app.py` on this machine's CPU, over
fake engines, or with `--demo` over real ones (a core each; minutes).

Prints one JSON object of what was seen. On replicas with a fake engine `app.main` is the fake server's application: a
folder of this script's own stands first on their path and holds a sitecustomize.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from ray import init, serve, shutdown

from config.ray.serve_app import FIRST_PORT, Gateway
from tests.config.load import Load, Outcome

ROOT = Path(__file__).parents[2]
HOOK = "import app\nfrom tests.app import fake_server\napp.main = fake_server.app\n"
PORTS = range(FIRST_PORT, FIRST_PORT + 8)
README = (
    "A train travels 60 miles in 2 hours. What is its average speed?",
    "Average speed is distance divided by time. The train travels 60 miles in 2 hours. 60 / 2 = 30."
    " The average speed is 30 miles per hour.",
)


def replicas() -> dict[str, float]:
    """Port and start time of each replica -> whether it is ready. Two may start in the same hundredth of a second."""
    found = {}
    for port in PORTS:
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
        except httpx.TransportError:
            continue
        numbers = dict(re.findall(r"^(process_start_time_seconds|t5gemma_ready) (\S+)$", text, re.MULTILINE))
        found[f"{port} since {numbers['process_start_time_seconds']}"] = float(numbers["t5gemma_ready"])
    return found


def until(reached: Callable[[dict[str, float]], bool], seconds: float = 300) -> dict[str, float]:
    """The replicas, once they are as they should be or the time is up."""
    deadline = time.monotonic() + seconds
    while not reached(now := replicas()) and time.monotonic() < deadline:
        time.sleep(0.3)
    return now


class Cluster:
    """Ray on this machine; its proxy answers at `url`."""

    def __init__(self, folder: Path, demo: bool) -> None:
        self._demo = demo
        (folder / "sitecustomize.py").write_text("" if demo else HOOK)
        self._path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        init(num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
        serve.start(http_options={"host": "127.0.0.1", "port": self._port})

    def deploy(self, **fake: Any) -> dict[str, float]:
        """Two replicas over engines like this, as `serve.run` returns them."""
        variables = {"PYTHONPATH": self._path, "FAKE": json.dumps(fake), "GRACE": "30"}
        options = {"num_gpus": 0, "num_cpus": 1, "runtime_env": {"env_vars": variables}}
        gateway = Gateway.options(  # type: ignore[attr-defined]
            num_replicas=2, health_check_period_s=1, ray_actor_options=options
        )
        serve.run(gateway.bind(), route_prefix="/")
        return replicas()

    def load(self) -> Load:
        return Load(self.url, asked=README, max_tokens=64) if self._demo else Load(self.url)


@contextmanager
def cluster(folder: Path, demo: bool) -> Iterator[Cluster]:
    running = Cluster(folder, demo)
    running.start()
    try:
        yield running
    finally:
        serve.shutdown()
        shutdown()


def engines_die(ray: Cluster) -> dict[str, Any]:
    """Both engines die ten seconds after they were ready."""
    began = time.monotonic()
    first = ray.deploy(load_s=4, die_after_s=10)
    run_s = time.monotonic() - began
    last = until(lambda now: [now[one] for one in now.keys() - first] == [1, 1])
    return {"run_s": run_s, "first": first, "second": {one: last[one] for one in last.keys() - first}}


def killed(ray: Cluster, engine: bool = False) -> dict[str, Any]:
    """One replica's process is killed under load; Ray makes another."""
    first = ray.deploy(delay_s=0.01)
    with ray.load() as load:
        time.sleep(2)
        at = time.monotonic()
        victim = min(_replica_processes(), key=lambda process: process.pid)
        (_engine_of(victim) if engine else victim).kill()
        second = until(lambda now: len(now.keys() - first) == 1 and list(now.values()) == [1, 1])
        replaced = time.monotonic()
        time.sleep(2)
    return {"first": first, "second": second, "replaced_s": replaced - at} | _told(load.outcomes, at)


def engine_killed(ray: Cluster) -> dict[str, Any]:
    """The same with one replica's engine, which only the demo has in a process of its own."""
    return killed(ray, engine=True)


def updated(ray: Cluster) -> dict[str, Any]:
    """Both replicas are replaced by others of a new version under load."""
    first = ray.deploy(delay_s=0.01)
    with ray.load() as load:
        time.sleep(2)
        at = time.monotonic()
        ray.deploy(delay_s=0.009)
        second = until(lambda now: not now.keys() & first and list(now.values()) == [1, 1])
        replaced = time.monotonic()
        time.sleep(2)
    return {"first": first, "second": second, "replaced_s": replaced - at} | _told(load.outcomes, at)


def _replica_processes() -> list[psutil.Process]:
    """Ray names a process after its actor."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if "ServeReplica" in " ".join(one.cmdline())]


def _engine_of(replica: psutil.Process) -> psutil.Process:
    """vLLM's engine: a child of the fork server, which is a child of the replica."""
    (engine,) = [one for one in replica.children(recursive=True) if one.ppid() != replica.pid]
    return engine


def _told(outcomes: list[Outcome], at: float) -> dict[str, Any]:
    """How the requests ended; `failed` has begin and end in seconds after `at`, and why."""
    failed = [one for one in outcomes if one.failure is not None]
    return {
        "requests": len(outcomes),
        "failed": [[one.began - at, one.ended - at, one.stream, one.failure] for one in failed],
        "slowest_s": max(one.ended - one.began for one in outcomes),
    }


SCENARIOS: dict[str, Callable[[Cluster], dict[str, Any]]] = {
    one.__name__: one for one in (engines_die, killed, engine_killed, updated)
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--demo", action="store_true")
    asked = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory() as place, cluster(Path(place), asked.demo) as ray:
        print(json.dumps(SCENARIOS[asked.scenario](ray)))
