"""The example configurations: they parse, and every variable, metric and path in them exists."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from dotenv import dotenv_values
from prometheus_client import CollectorRegistry, generate_latest

from app.drafts.drafting import Drafting
from app.drafts.gauges import DraftCollector
from app.drafts.identity import Identity
from app.environment import load_settings
from app.settings import PREFIX, Settings, variable
from plugin.drafts.checkpoint import resolve
from plugin.drafts.steps import StepStats
from tests.app.conftest import complete, served
from tests.app.fake_engine import FakeEngine
from tests.plugin.drafts.folders import write_pair

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "config"
FILES = sorted(path for path in CONFIG.rglob("*") if path.is_file() and path.suffix != ".pyc")
VARIABLES = {variable(field) for field in Settings.model_fields}
PROFILES = {
    "demo": None,
    "verifier": "google/t5gemma-2-1b-1b",
    "dflash": "d0rj/t5gemma-2-1b-1b.dflash-dev",
    "dspark": "d0rj/t5gemma-2-1b-1b.dspark-large",
    "dflare": "d0rj/t5gemma-2-1b-1b.dflare-large",
}


def load(name: str) -> Any:
    documents = list(yaml.safe_load_all((CONFIG / name).read_text()))
    return documents if len(documents) > 1 else documents[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONFIG).as_posix())
def test_every_variable_exists(path: Path) -> None:
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]+", path.read_text()))
    assert named <= VARIABLES, named - VARIABLES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONFIG).as_posix())
def test_every_file_parses(path: Path) -> None:
    text = path.read_text()
    if path.suffix in {".yml", ".yaml"}:
        assert all(isinstance(document, dict) for document in yaml.safe_load_all(text))
    elif path.suffix == ".json":
        assert isinstance(json.loads(text), dict)
    elif path.suffix == ".toml":
        assert tomllib.loads(text)
    elif path.suffix == ".py":
        compile(text, str(path), "exec")
    else:
        assert path.suffix == ".env"


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_are_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each profile is accepted as it is and names the published checkpoint."""
    for field in Settings.model_fields:
        monkeypatch.delenv(variable(field), raising=False)
    file = CONFIG / f"{name}.env"
    assert load_settings(file).model == PROFILES[name]
    assert set(dotenv_values(file)) <= VARIABLES
    assert load_settings(file).draft == ("none" if name == "verifier" else None)


PUBLISHED = {
    "verifier": "t5gemma-2-1b-1b",
    "dflash": "t5gemma-2-1b-1b-dflash",
    "dspark": "t5gemma-2-1b-1b-dspark",
    "dflare": "t5gemma-2-1b-1b-dflare",
}
"""Model names of the published requests."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.anyio
async def test_profiles_answer_to_the_published_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the profile alone the published requests are served, not 404 (N30); the checkpoint's own name is, too."""
    for field in Settings.model_fields:
        monkeypatch.delenv(variable(field), raising=False)
    profile = load_settings(CONFIG / f"{name}.env")
    assert profile.model is not None
    names = {PUBLISHED[name], profile.model.partition("/")[2]}
    async with served(FakeEngine(), served_model_name=profile.served_model_name) as client:
        models = (await client.get("/v1/models")).json()["data"]
        assert models[0]["id"] == PUBLISHED[name]
        for asked in names:
            assert (await client.get(f"/v1/models/{asked}")).status_code == 200
            assert (await complete(client, model=asked)).status_code == 200


@pytest.mark.parametrize("file", ["kubernetes/gateway.yaml", "ray/serve.yaml"])
def test_manifests_answer_to_the_published_name(file: str) -> None:
    text = (CONFIG / file).read_text()
    assert "dflare-large" in text and PUBLISHED["dflare"] in text


def test_no_profile_is_forgotten() -> None:
    assert {path.stem for path in CONFIG.glob("*.env")} == set(PROFILES)


@pytest.fixture(scope="module")
def own_series(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the samples that /metrics has of the gateway itself, with a draft loaded."""
    found = resolve(str(write_pair(tmp_path_factory.mktemp("pair")) / "dflash"), None, None, None)
    registry = CollectorRegistry()
    settings = Settings()
    served = Identity.of(found, settings), Drafting(found.draft, found.k, settings)
    served[1].record(StepStats(7, 1, 0.01, {7: (1, (1,))}))
    registry.register(DraftCollector(lambda: served, lambda: True, lambda: 0))
    return set(re.findall(r"^(t5gemma_\w+)", generate_latest(registry).decode(), re.MULTILINE))


def names_in_vllm() -> set[str]:
    """Names of the engine's metrics, from the installed vLLM's sources."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    sources = Path(spec.origin).parent / "v1"
    files = [sources / "metrics" / "loggers.py", sources / "spec_decode" / "metrics.py"]
    return {name for file in files for name in names_of_metrics(file.read_text())}


def names_of_metrics(text: str) -> set[str]:
    """The engine's metrics that a text names, without what a counter's or histogram's samples append."""
    return {re.sub(r"_(total|bucket|sum|count)$", "", series) for series in re.findall(r"\bvllm:\w+", text)}


@pytest.mark.parametrize("name", ["grafana/dashboard.json", "prometheus/alerts.yml"])
def test_every_metric_exists(name: str, own_series: set[str]) -> None:
    text = (CONFIG / name).read_text()
    own = set(re.findall(r"\bt5gemma_\w+", text))
    assert own and own <= own_series, own - own_series
    engine, known = names_of_metrics(text), names_in_vllm()
    assert engine and engine <= known, engine - known


def test_dashboard() -> None:
    panels = json.loads((CONFIG / "grafana/dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 8
    uid = load("grafana/provisioning/datasources/prometheus.yml")["datasources"][0]["uid"]
    for panel in panels:
        assert panel["datasource"]["uid"] == uid
        assert panel["targets"] and panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_compose() -> None:
    """Mounted and built paths exist; Prometheus scrapes the service by its name and port."""
    services = load("compose.yaml")["services"]
    targets = re.findall(r"^FROM .* AS (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {"cpu", "cuda"} <= set(targets)
    assert (CONFIG / services["gateway"]["build"]["context"]).resolve() == ROOT
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (CONFIG / source).exists(), source
    [scrape] = load("prometheus/prometheus.yml")["scrape_configs"]
    assert scrape["static_configs"][0]["targets"] == ["gateway:8000"]
    assert services["gateway"]["ports"] == ["127.0.0.1:8000:8000"]
    for rules in load("prometheus/prometheus.yml")["rule_files"]:
        assert (CONFIG / "prometheus" / rules).is_file()
    grace = float(services["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace > Settings.model_fields["shutdown_grace_s"].default


def test_kubernetes_probes() -> None:
    """Loading is healthy but not ready, so only the startup and readiness probes ask /ready."""
    deployment, service = load("kubernetes/gateway.yaml")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (
        pod["enableServiceLinks"] is False
    )  # a service named t5gemma-x would be told as T5GEMMA_X_... (N13)
    asked = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")
    }
    assert asked == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    assert container["ports"][0]["name"] == service["spec"]["ports"][0]["targetPort"]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert all(isinstance(entry.get("value", ""), str) for entry in container["env"])
    grace = next(float(e["value"]) for e in container["env"] if e["name"] == "T5GEMMA_SHUTDOWN_GRACE_S")
    assert pod["terminationGracePeriodSeconds"] > grace


def test_ray_serve() -> None:
    """The import path is the example file, and the deployment's name agrees."""
    [application] = load("ray/serve.yaml")["applications"]
    place, attribute = application["import_path"].split(":")
    source = (ROOT / Path(*place.split("."))).with_suffix(".py").read_text()
    assert f"\n{attribute} = " in source
    assert f'name="{application["deployments"][0]["name"]}"' in source
    assert all(isinstance(value, str) for value in application["runtime_env"]["env_vars"].values())


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (`apt-get install prometheus`)"
)
def test_prometheus_itself_takes_its_files() -> None:
    """promtool reads the rules that the configuration names, too."""
    command = ["promtool", "check", "config", CONFIG / "prometheus/prometheus.yml"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0 and "3 rules found" in ended.stdout, ended.stdout + ended.stderr
