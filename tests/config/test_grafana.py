"""Grafana's dashboard and provisioning. Grafana is not packaged for Debian, so their files are read as it does."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.files import CONFIG, documents

DASHBOARD = json.loads((CONFIG / "grafana/dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
(SOURCES,) = documents("grafana/provisioning/datasources/prometheus.yml")
(PROVIDERS,) = documents("grafana/provisioning/dashboards/t5gemma2.yml")
(COMPOSE,) = documents("compose.yaml")
COLUMNS = 24
TYPES = {"stat", "timeseries", "gauge", "bargauge", "table", "heatmap", "barchart", "text"}


def test_panels() -> None:
    """Each has an id and a title of its own, a known type, and fits beside the others."""
    assert DASHBOARD["uid"] and DASHBOARD["title"] and DASHBOARD["schemaVersion"] >= 36
    assert (
        len({panel["id"] for panel in PANELS}) == len({panel["title"] for panel in PANELS}) == len(PANELS) > 8
    )
    for panel in PANELS:
        place = panel["gridPos"]
        assert panel["type"] in TYPES and place["x"] + place["w"] <= COLUMNS and place["h"] > 0
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_every_panel_asks_the_provisioned_source() -> None:
    """The same uid and type; queries of a panel are told apart by their letters."""
    (source,) = SOURCES["datasources"]
    for panel in PANELS:
        assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
        letters = [target["refId"] for target in panel["targets"]]
        assert letters and len(set(letters)) == len(letters)
        assert all(target["expr"].strip() for target in panel["targets"])


def test_provisioning() -> None:
    """In Grafana's fields: an unknown one is passed over in silence, so that nothing but a test would tell."""
    assert SOURCES["apiVersion"] == PROVIDERS["apiVersion"] == 1
    (source,), (provider,) = SOURCES["datasources"], PROVIDERS["providers"]
    assert source.keys() <= {
        "name",
        "uid",
        "type",
        "url",
        "access",
        "isDefault",
        "editable",
        "jsonData",
        "orgId",
    }
    assert provider.keys() <= {
        "name",
        "orgId",
        "folder",
        "folderUid",
        "type",
        "disableDeletion",
        "options",
        "updateIntervalSeconds",
        "allowUiUpdates",
    }
    assert provider["type"] == "file"
    assert source["url"].removeprefix("http://").partition(":")[0] in COMPOSE["services"]
    mounts = [volume.split(":") for volume in COMPOSE["services"]["grafana"]["volumes"]]
    places = {Path(inside) for _, inside, _ in mounts}
    assert Path("/etc/grafana/provisioning") in places
    assert Path(provider["options"]["path"]) in {place.parent for place in places}


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (`apt-get install prometheus`)"
)
def test_prometheus_itself_reads_every_expression(tmp_path: Path) -> None:
    """As rules, which promtool parses."""
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    ended = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0 and f"{len(rules)} rules found" in ended.stdout, ended.stdout + ended.stderr
