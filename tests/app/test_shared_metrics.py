"""`PROMETHEUS_MULTIPROC_DIR` is for several processes behind one port; one process serves here, and ignores it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.app.test_main import environment
from tests.plugin.drafts.folders import write_pair

FORMER = "from prometheus_client import Counter; Counter('vllm:former', 'x').inc(7)"
SERVER = """
import json, os, sys
import app
application = app.main
from fastapi.testclient import TestClient
from prometheus_client import Counter
client = TestClient(application)
probe = Counter("vllm:probe", "x")
for _ in range(int(sys.argv[1])):
    client.get("/v1/models")
    probe.inc()
print(json.dumps([client.get("/metrics").text, "PROMETHEUS_MULTIPROC_DIR" in os.environ]))
"""


def python(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def metrics_of(checkpoints: Path, shared: Path, requests: int) -> str:
    """`/metrics` of a server that had so many requests; it must have warned."""
    model = str(checkpoints / "dflash")
    ended = python(SERVER, str(requests), T5GEMMA_MODEL=model, PROMETHEUS_MULTIPROC_DIR=str(shared))
    assert f"PROMETHEUS_MULTIPROC_DIR={shared} is ignored" in ended.stderr
    text, still_set = json.loads(ended.stdout.splitlines()[-1])
    assert not still_set
    return str(text)


def counts(text: str, name: str) -> list[float]:
    return [float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)]


REQUESTS = 't5gemma_http_requests_total{handler="/v1/models"'


def former(shared: Path) -> dict[str, bytes]:
    """Leaves the files of another process in the folder, and gives them."""
    shared.mkdir()
    python(FORMER, PROMETHEUS_MULTIPROC_DIR=str(shared))
    files = {file.name: file.read_bytes() for file in shared.iterdir()}
    assert files
    return files


def test_counters_begin_at_zero(tmp_path: Path) -> None:
    """Nothing of a former run is shown, and no start adds a file (E04)."""
    files = former(tmp_path / "shared")
    write_pair(tmp_path)
    for _ in range(2):
        text = metrics_of(tmp_path, tmp_path / "shared", 1)
        assert counts(text, REQUESTS) == [1] and counts(text, "vllm:probe_total") == [1]
        assert "vllm:former" not in text
    assert {file.name for file in (tmp_path / "shared").iterdir()} == set(files)


def test_two_servers_count_apart(tmp_path: Path) -> None:
    """The second shows nothing of the first, and touches no file of another's (E05)."""
    files = former(tmp_path / "shared")
    write_pair(tmp_path)
    assert counts(metrics_of(tmp_path, tmp_path / "shared", 5), REQUESTS) == [5]
    assert counts(metrics_of(tmp_path, tmp_path / "shared", 0), REQUESTS) == []
    assert {file.name: file.read_bytes() for file in (tmp_path / "shared").iterdir()} == files


def test_missing_folder_is_harmless(tmp_path: Path) -> None:
    """A folder for shared metrics that is not there is neither needed nor made (E07)."""
    write_pair(tmp_path)
    assert counts(metrics_of(tmp_path, tmp_path / "none", 1), "vllm:probe_total") == [1]
    assert not os.path.exists(tmp_path / "none")
