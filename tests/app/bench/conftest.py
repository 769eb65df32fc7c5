"""Checkpoints, prompts and scripted servers for the two commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.bench import grid, servers
from tests.app.bench.started import in_a_thread
from tests.plugin.drafts.folders import write_pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with checkpoints and prompts; the servers of its arms are scripted ones, in threads."""
    monkeypatch.setattr(grid, "serving", in_a_thread)
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"prompt {'x' * i}"} for i in range(6)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return write_pair(tmp_path)


@pytest.fixture
def processes(pair: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `pair`, but the servers are processes, as in a real run."""
    monkeypatch.setattr(grid, "serving", servers.serving)
    monkeypatch.setattr(servers, "APPLICATION", "tests.app.bench.started:app")
    return pair
