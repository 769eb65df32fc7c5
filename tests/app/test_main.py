"""`app:main`: made on first use; what is wrong ends the process in one line before anything is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import app
from tests.plugin.drafts.folders import write_draft, write_pair

ROOT = Path(__file__).parents[2]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment with exactly these T5GEMMA_* variables."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("T5GEMMA_")}
    return kept | {"PYTHONPATH": str(ROOT), **variables}


def uvicorn(
    folder: Path, *arguments: str, flags: str = "--port=0", **variables: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uvicorn", "app:main", *flags.split(), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=60
    )


def test_wrong_checkpoint_ends_uvicorn_with_one_line(tmp_path: Path) -> None:
    """Exit 1, the last line names file and key, and no traceback stands above it (D02, D15)."""
    write_pair(tmp_path)
    methods = [{"speculative_tokens": 0}]
    draft = write_draft(
        tmp_path / "bad", change=lambda config: config["speculators_config"].update(proposal_methods=methods)
    )
    ended = uvicorn(tmp_path, T5GEMMA_MODEL=str(draft))
    assert ended.returncode == 1
    lines = ended.stderr.strip().splitlines()
    assert lines[-1].startswith(f"t5gemma2: {draft}/config.json: speculators_config.proposal_methods[0].")
    assert "Traceback" not in ended.stderr


def test_settings_error_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share above 1 ends the start in one line, before any checkpoint is looked at (D24)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("T5GEMMA_GPU_MEMORY_UTILIZATION", "1.1")
    with pytest.raises(SystemExit, match=r"^t5gemma2: T5GEMMA_GPU_MEMORY_UTILIZATION='1\.1'"):
        app.__getattr__("main")


def test_main_is_one_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made once, with the checkpoints of the environment, and nothing is loaded by making it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("T5GEMMA_MODEL", f"{write_pair(tmp_path)}/dflash")
    monkeypatch.setitem(vars(app), "main", None)
    application = app.__getattr__("main")
    assert app.main is application
    assert application.state.gateway.identity.draft.path == str(tmp_path / "dflash")
    assert application.state.gateway.phase == "loading"


def test_only_main_is_made() -> None:
    with pytest.raises(AttributeError, match="no attribute 'mian'"):
        app.__getattr__("mian")
    assert not (ROOT / "app" / "main.py").exists()
