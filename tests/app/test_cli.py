"""The `t5gemma2` command: its flags are the settings, and they reach the server as they were written."""

from __future__ import annotations

import os
from typing import Any

import pytest
import uvicorn

from app import cli
from app.settings import Settings, variable


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What uvicorn was asked to run, in place of running it; the environment is restored afterwards."""
    asked: dict[str, Any] = {}
    for field in Settings.model_fields:
        monkeypatch.setenv(variable(field), "")

    def run(application: str, **options: Any) -> None:
        asked.update(options, application=application)

    monkeypatch.setattr(uvicorn, "run", run)
    return asked


def test_serve(served: dict[str, Any]) -> None:
    """A path with spaces and umlauts through the command line (D13)."""
    place = "/tmp/my drafts/über (1)/dflash"
    cli.main(["serve", "--port", "9", "--draft", place, "--max-model-len", "64", "--enforce-eager", "true"])
    assert (served["application"], served["port"], served["host"]) == ("app:main", 9, "127.0.0.1")
    assert served["workers"] == 1
    settings = Settings()
    assert (settings.draft, settings.max_model_len, settings.enforce_eager) == (place, 64, True)


def test_flags_left_out_leave_the_environment(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("T5GEMMA_K", "3")
    cli.main(["serve"])
    assert os.environ["T5GEMMA_K"] == "3"


def test_every_setting_but_keys_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--help"])
    assert ended.value.code == 0
    text = "".join(capsys.readouterr().out.split())
    for field in Settings.model_fields:
        assert (f"[{variable(field)}]" in text) == (field != "api_keys"), field


@pytest.mark.parametrize("argv", [[], ["swerve"], ["serve", "--kay", "3"], ["serve", "--port", "x"]])
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "usage: t5gemma2" in capsys.readouterr().err
