"""The compose file against its specification's schema, and against the files that it mounts and builds."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.config.files import CONFIG, LONGEST_STOP_S, ROOT, documents

(COMPOSE,) = documents("compose.yaml")
(SCRAPING,) = documents("prometheus/prometheus.yml")


def test_files() -> None:
    """Mounted and built paths exist; Prometheus scrapes the service by its name and port."""
    services = COMPOSE["services"]
    targets = re.findall(r"^FROM .* AS (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {"cpu", "cuda"} <= set(targets)
    assert (CONFIG / services["gateway"]["build"]["context"]).resolve() == ROOT
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (CONFIG / source).exists(), source
    [scrape] = SCRAPING["scrape_configs"]
    assert scrape["static_configs"][0]["targets"] == ["gateway:8000"]
    assert services["gateway"]["ports"] == ["127.0.0.1:8000:8000"]
    for rules in SCRAPING["rule_files"]:
        assert (CONFIG / "prometheus" / rules).is_file()


def test_stop() -> None:
    assert float(COMPOSE["services"]["gateway"]["stop_grace_period"].removesuffix("s")) > LONGEST_STOP_S


def test_caches_lie_in_the_volume() -> None:
    """What the image downloads and compiles outlives the container, and the folder is the image's user's."""
    (volume,) = COMPOSE["services"]["gateway"]["volumes"]
    folder = volume.partition(":")[2]
    text = (ROOT / "Dockerfile").read_text()
    assert f"chown -R t5gemma2 {folder}" in text
    caches = re.findall(r"^ +\w*CACHE\w*=(/\S+)", text, re.MULTILINE)
    assert len(caches) == 3 and all(cache.startswith(f"{folder}/") for cache in caches)


@pytest.mark.skipif(
    not importlib.util.find_spec("check_jsonschema"),
    reason="check-jsonschema is not installed (`pip install .[dev]`)",
)
def test_schema() -> None:
    """Compose's specification, as check-jsonschema brings it along."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    ended = subprocess.run([*command, CONFIG / "compose.yaml"], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stdout + ended.stderr
