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

from app.config.environment import load_settings
from app.config.settings import PREFIX, Settings, variable
from app.drafts.drafting import Drafting
from app.drafts.gauges import DraftCollector
from app.drafts.identity import Identity
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
    else:  # their own programs read these, in tests/config
        assert path.suffix in {".env", ".conf", ".cfg", ".service"}


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


@pytest.mark.parametrize("file", ["ray/serve.yaml", "ray/demo.yaml"])
def test_ray_serve(file: str) -> None:
    """The import path is the example file, and the deployment's name agrees."""
    [application] = load(file)["applications"]
    place, attribute = application["import_path"].split(":")
    source = (ROOT / Path(*place.split("."))).with_suffix(".py").read_text()
    assert f"\n{attribute} = " in source
    assert f'name="{application["deployments"][0]["name"]}"' in source
    variables = application.get("runtime_env", {}).get("env_vars", {})
    assert all(isinstance(value, str) for value in variables.values())


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (`apt-get install prometheus`)"
)
def test_prometheus_itself_takes_its_files() -> None:
    """promtool reads the rules that the configuration names, too."""
    command = ["promtool", "check", "config", CONFIG / "prometheus/prometheus.yml"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0 and "3 rules found" in ended.stdout, ended.stdout + ended.stderr
