"""`python -m tests.ray_replicas`: two replicas of `config/ray/serve_app.py` on this machine's CPU, over fake engines.

Prints one JSON object of what was seen. On the replicas `app.main` is the fake server's application: a folder of this
script's own stands first on their path and holds a sitecustomize.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from ray import init, serve, shutdown

from config.ray.serve_app import FIRST_PORT, Gateway

ROOT = Path(__file__).parents[1]
HOOK = "import app\nfrom tests.app import fake_server\napp.main = fake_server.app\n"
LOAD_S, LIFE_S, PORTS = 4, 10, range(FIRST_PORT, FIRST_PORT + 8)


def replicas() -> dict[str, float]:
    """Start time of each replica's process -> whether it is ready, from its own port."""
    found = {}
    for port in PORTS:
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=2).text
        except httpx.TransportError:
            continue
        numbers = dict(re.findall(r"^(process_start_time_seconds|t5gemma_ready) (\S+)$", text, re.MULTILINE))
        found[numbers["process_start_time_seconds"]] = float(numbers["t5gemma_ready"])
    return found


def main(folder: Path) -> dict[str, Any]:
    (folder / "sitecustomize.py").write_text(HOOK)
    variables = {
        "PYTHONPATH": f"{folder}:{ROOT}",
        "FAKE": json.dumps({"load_s": LOAD_S, "die_after_s": LIFE_S}),
    }
    init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": 0})
    began = time.monotonic()
    options = {"num_gpus": 0, "num_cpus": 1, "runtime_env": {"env_vars": variables}}
    serve.run(
        Gateway.options(num_replicas=2, health_check_period_s=1, ray_actor_options=options).bind(),  # type: ignore[attr-defined]
        route_prefix="/",
    )
    seen: dict[str, Any] = {"run_s": time.monotonic() - began, "first": replicas()}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = replicas()
        if len(new := {one: ready for one, ready in now.items() if one not in seen["first"]}) == 2:
            seen["second"] = new
            if all(new.values()):
                break
        time.sleep(0.5)
    serve.shutdown()
    shutdown()
    return seen


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(main(Path(place))))
