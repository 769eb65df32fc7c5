"""What is said at start of the settings in use: each value, where it comes from, and nothing secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app import cli
from app.config import environment
from app.config.effective import effective
from app.config.environment import load_settings
from app.config.settings import Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, no .env, and no flag of another test."""
    for name in [name for name in os.environ if name.upper().startswith("T5GEMMA")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(environment, "FLAGS", set())
    monkeypatch.chdir(tmp_path)


def test_origins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Code before flag before environment before .env before default, as the values themselves are chosen."""
    lines = ["# mine", "T5GEMMA_K=3", "T5GEMMA_SEED=1", "t5gemma_dtype=float32", "T5GEMMA_MAX_NUM_SEQS=2"]
    (tmp_path / ".env").write_text("\n".join(lines))
    monkeypatch.setenv("T5GEMMA_SEED", "2")
    monkeypatch.setenv("t5gemma_draft", "none")
    monkeypatch.setenv("T5GEMMA_MAX_NUM_SEQS", "")
    monkeypatch.setenv("T5GEMMA_MODEL", "./x")
    environment.FLAGS.add("T5GEMMA_MODEL")
    settings = load_settings(probe=False, log_prompts=True)
    assert settings._origins == {
        "k": ".env, line 2",
        "dtype": ".env, line 4",
        "max_num_seqs": ".env, line 5",
        "seed": "environment",
        "draft": "environment",
        "model": "flag",
        "probe": "code",
        "log_prompts": "code",
    }
    told = effective(settings)
    given, _, defaults = told.partition(" by default: ")
    for part in (
        "T5GEMMA_K=3 (.env, line 2)",
        "T5GEMMA_SEED=2 (environment)",
        "T5GEMMA_MODEL=./x (flag)",
        "T5GEMMA_PROBE=false (code)",
        "T5GEMMA_MAX_NUM_SEQS=2 (.env, line 5)",
    ):
        assert part in given
    assert "T5GEMMA_WARM_UP=true" in defaults and "T5GEMMA_K=" not in defaults and "(" not in defaults
    assert "T5GEMMA_VERIFIER" not in told and "T5GEMMA_API_KEYS" not in told


def test_blank_is_unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A blank variable hides the file's value, as it does in the settings."""
    (tmp_path / ".env").write_text("T5GEMMA_K=3\n")
    monkeypatch.setenv("T5GEMMA_K", "  ")
    settings = load_settings()
    assert settings.k is None and settings._origins == {}


def test_flags_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    monkeypatch.setenv("T5GEMMA_K", "3")
    monkeypatch.setenv("T5GEMMA_SEED", "1")
    found: list[Settings] = []
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: found.append(load_settings()))
    cli.main(["serve", "--port", "0", "--k", "5"])
    assert found[0].k == 5 and found[0]._origins == {"k": "flag", "seed": "environment"}


def test_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys by their number alone; of an address neither name nor password."""
    monkeypatch.setenv("T5GEMMA_API_KEYS", "sk-one,sk-two")
    monkeypatch.setenv("T5GEMMA_CORS_ORIGINS", "https://me:pa55@ui.example,http://tok3n@b")
    told = effective(load_settings(env_file=None))
    assert not any(secret in told for secret in ("sk-", "pa55", "me:", "tok3n"))
    assert "T5GEMMA_API_KEYS=**********,********** (environment)" in told
    assert "T5GEMMA_CORS_ORIGINS=https://**********@ui.example,http://**********@b (environment)" in told


def test_settings_that_were_not_loaded() -> None:
    """They have no origins, and are told as they are."""
    told = effective(Settings(_env_file=None, k=3))
    assert "T5GEMMA_K=3" in told and "(" not in told and "by default" not in told
