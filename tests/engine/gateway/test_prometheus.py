"""Prometheus 2, Debian's package, scrapes the server with `config/prometheus`; all that it asks for is there (N17)."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import PROMPT

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not shutil.which("prometheus"), reason="Prometheus is not installed (`apt-get install prometheus`)"
    ),
]

CONFIG = Path(__file__).parents[3] / "config"
ALERTS = [
    rule["expr"]
    for group in yaml.safe_load((CONFIG / "prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [
    target["expr"]
    for panel in json.loads((CONFIG / "grafana/dashboard.json").read_text())["panels"]
    for target in panel["targets"]
]
SERIES = sorted({found for expr in ALERTS for found in re.findall(r"(?:t5gemma_|vllm:)\w+(?:{.*?})?", expr)})
"""What the alerts compare: a rule that fires for nothing returns nothing, what it looks at must be there."""


class Prometheus:
    """A running Prometheus; `ask` is its HTTP API."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, path: str, **parameters: str) -> Any:
        reply = self._client.get(f"/api/v1/{path}", params=parameters)
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]

    def values(self, expr: str) -> list[str]:
        return [one["value"][1] for one in self.ask("query", query=expr)["result"]]


@pytest.fixture(scope="module")
def prometheus(server: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Our configuration with this server's address and a short interval, after ten scrapes with traffic."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(CONFIG / "prometheus/alerts.yml", folder)
    config = yaml.safe_load((CONFIG / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=10) as client:
            running = Prometheus(client)
            _scraped(running, server, 10)
            yield running
    finally:
        process.terminate()
        process.wait(20)


def _scraped(running: Prometheus, server: GatewayProcess, scrapes: int) -> None:
    """Requests until the server was scraped so often."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        server.complete(PROMPT, max_tokens=20, ignore_eos=True)
        try:
            count = running.values("count_over_time(t5gemma_ready[5m])")
        except (httpx.TransportError, AssertionError):  # it is starting
            count = []
        if count and int(count[0]) >= scrapes:
            return
        time.sleep(0.5)
    raise AssertionError("Prometheus scraped too little in a minute")


def test_the_server_is_scraped(prometheus: Prometheus) -> None:
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


@pytest.mark.parametrize("expr", PANELS)
def test_every_panel_has_data(prometheus: Prometheus, expr: str) -> None:
    assert prometheus.values(expr)


@pytest.mark.parametrize("series", SERIES)
def test_what_alerts_look_at_is_there(prometheus: Prometheus, series: str) -> None:
    assert len(prometheus.values(series)) == 1


def test_alerts_are_evaluated_and_silent(prometheus: Prometheus) -> None:
    """A server that is well fires none of them."""
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["query"] for rule in rules} == set(ALERTS)
    assert all((rule["health"], rule["state"]) == ("ok", "inactive") for rule in rules), rules


def test_counts_are_the_servers(prometheus: Prometheus, server: GatewayProcess) -> None:
    """Under the names of plain /metrics, colon included."""
    (value,) = prometheus.values("vllm:spec_decode_num_drafts_total")
    assert 0 < float(value) <= server.metric("vllm:spec_decode_num_drafts_total")
    assert not prometheus.values('{__name__=~"vllm_.*"}')
