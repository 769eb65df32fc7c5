"""`t5gemma2 check` from the command line to its exit code, against scripted servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.bench.client import Target
from tests.app.bench.commands import run, served_arms

CHECK = ("check", "dflash", "--data", "mine=p.jsonl", "--num-prompts", "3", "--warmup", "1")


@pytest.mark.parametrize(
    ("environment", "code", "conclusion"),
    [
        ({}, 0, "fits: output is the verifier's own; K=7 is best"),
        ({"DRAFT_MS": "30"}, 4, "fits, but is not faster than no draft"),
        ({"WRONG": "1"}, 3, "output differs from the verifier's own: 3 of 3 at K=1, 3 of 3 at K=7"),
        ({"WRONG": "1", "GAP": "0.05"}, 0, "fits: output is the verifier's own; K=7 is best"),
    ],
)
def test_check(
    pair: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    code: int,
    conclusion: str,
) -> None:
    """The exit code says it; a difference at a near tie of the verifier's is none."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run(*CHECK, "--k", "1,7") == code
    shown = capsys.readouterr().out
    assert conclusion in shown and "dflash, 2 layers, block 8, on verifier" in shown
    assert not [path for path in pair.iterdir() if path.name not in ("verifier", "dflash", "p.jsonl")]


def test_check_of_what_does_not_fit(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = pair / "dflash" / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 40', '"vocab_size": 41'))
    assert run(*CHECK) == 1
    assert "transformer_layer_config.vocab_size is 41" in capsys.readouterr().err
    assert run("check", "verifier") == 1


def test_check_chooses_its_ks(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*CHECK, "--k", "8") == 1
    assert "--k 8: block_size 8 allows 1 ... 7" in capsys.readouterr().err
    assert run(*CHECK, "--num-prompts", "1") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "1/1" in line]
    assert [line.split()[1] for line in lines] == ["1", "3", "7"]


def test_check_keeps_near_ties(
    pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that has all records needs no server; another K is judged by the verifier, not by its draft."""
    monkeypatch.setenv("WRONG", "1")
    monkeypatch.setenv("GAP", "0.05")
    # One chunk a token makes a draft no faster; what counts here is that the output counts as the verifier's.
    assert run(*CHECK, "--k", "7", "--out", "out") == 0
    started = served_arms(monkeypatch)
    assert run(*CHECK, "--k", "7", "--out", "out") == 0 and started == []
    assert "output is the verifier's own; K=7" in capsys.readouterr().out.replace("\n", " ")
    asked: list[bool] = []

    async def gap(target: Target, *rest: Any) -> float:
        asked.append(target.drafts["family"] is None)
        return 0.05

    monkeypatch.setattr(Target, "top_two_gap", gap)
    run(*CHECK, "--k", "5,7", "--out", "out")
    assert started == ["draft:5", "verifier"] and asked == [True] * 3
    assert "output is the verifier's own" in capsys.readouterr().out.replace("\n", " ")
    (pair / "out" / "cells" / "verifier.mine.c1.json").unlink()
    run(*CHECK, "--k", "7", "--out", "out")
    assert started == ["draft:5", "verifier", "verifier"] and len(asked) == 3


def test_check_counts_failed_requests(
    pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One good answer of many is no proof: every prompt has to be answered, with the draft and without."""
    monkeypatch.setenv("REFUSE", "prompt x")
    assert run(*CHECK, "--k", "7") == 3
    assert "requests failed: 2 of 3 failed at K=7" in capsys.readouterr().out
