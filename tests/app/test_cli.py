"""The `t5gemma2` command: its flags are the settings, and they reach the server as they were written."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest
import uvicorn

from app import cli
from app.config.settings import Settings, variable


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


def test_idle_connections(served: dict[str, Any]) -> None:
    """A proxy that keeps them for a minute would send requests into connections that end after five seconds."""
    cli.main(["serve"])
    assert served["timeout_keep_alive"] == uvicorn.Config("app:main").timeout_keep_alive
    cli.main(["serve", "--timeout-keep-alive", "75"])
    assert served["timeout_keep_alive"] == 75


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


def test_help_has_choices_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """N26: what a flag takes and what it is without."""
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(auto, bfloat16, float32; default: auto) [T5GEMMA_DTYPE]" in text
    assert "(integer, 1 ... 4096; default: 4) [T5GEMMA_MAX_NUM_SEQS]" in text
    assert "default: true) [T5GEMMA_WARM_UP]" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"t5gemma2 {version('t5gemma2-serving')}\n"


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    """N26: all commands, and the exit code of wrong usage."""
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert all(f"\n    {command} " in text for command in ("serve", "bench", "check", "top", "train"))


@pytest.mark.parametrize(
    "argv", [["--help"], ["serve", "--help"], ["top", "--help"], ["train", "dflare", "--help"]]
)
def test_help_within_a_second(argv: list[str]) -> None:
    """N26: nothing heavy is imported for it. Of processor time, since other programs use the machine too."""
    program = (
        "import sys\nfrom app import cli\ntry:\n    cli.main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'vllm', 'transformers', 'fastapi', 'uvicorn', 'datasets'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    before = os.times()
    ended = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True)
    after = os.times()
    assert ended.returncode == 0 and "usage: t5gemma2" in ended.stdout, ended.stderr
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 1.0


@pytest.mark.parametrize("argv", [[], ["swerve"], ["serve", "--kay", "3"], ["serve", "--port", "x"]])
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "usage: t5gemma2" in capsys.readouterr().err
