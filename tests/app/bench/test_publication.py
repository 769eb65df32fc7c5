"""What an author publishes: results in the draft's own folder, and the protocol of the published drafts."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from app.bench import publication
from app.bench.arms import Arm, own_arms
from app.bench.errors import BenchError
from app.bench.publication import cutter, draft_of
from plugin.drafts.checkpoint import DEMO
from tests.app.bench.commands import report_of, run, served_arms

SHORT = ("bench", "--data", "mine=p.jsonl", "--warmup", "1", "--out", "out")


def test_results_go_into_the_draft(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--into` measures the draft at the published K and its verifier, and fills benchmarks/bs1 and bs4 (N38)."""
    folder = pair / "dflash"
    (folder / "README.md").write_text("# A draft\n")
    started = served_arms(monkeypatch)
    assert run(*SHORT, "--into", "dflash") == 0
    assert started == ["verifier", "dflash:3", "dflash:7"]
    for at_once in (1, 4):
        place = folder / "benchmarks" / f"bs{at_once}"
        names = {"report.json", "report.md", "report.html", "comparison.csv", "requests"}
        names |= {f"{name}.{kind}" for name in ("speedup", "acceptance") for kind in ("png", "svg")}
        assert {file.name for file in place.iterdir()} == names
        made = report_of(place)
        assert [(row["arm"], row["concurrency"]) for row in made["rows"]] == [
            ("verifier", at_once), ("dflash:3", at_once), ("dflash:7", at_once),
        ]  # fmt: skip
        assert made["protocol"]["concurrency"] == [at_once]
        rows = list(csv.DictReader((place / "comparison.csv").read_text().splitlines()))
        assert [(row["arm"], row["completed"], row["acceptance_at_0"]) for row in rows] == [
            ("verifier", "6", ""), ("dflash:3", "6", "1.0"), ("dflash:7", "6", "1.0"),
        ]  # fmt: skip
        sent = list(
            csv.DictReader((place / "requests" / f"dflash_7.mine.c{at_once}.csv").read_text().splitlines())
        )
        assert [row["prompt"] for row in sent] == [str(number) for number in range(6)]
        assert "<svg" in (place / "report.html").read_text()
    card = (folder / "README.md").read_text()
    assert (
        card.startswith("# A draft\n\n<!-- benchmarks -->") and card.count("| mine | 4 | dflash:7 | 7 |") == 1
    )
    assert run(*SHORT, "--into", "dflash", "--concurrency", "1") == 0
    again = (folder / "README.md").read_text()
    assert again.count("<!-- benchmarks -->") == 1 and "| mine | 4 |" not in again


@pytest.mark.parametrize(
    ("folder", "words"), [("verifier", "is no Speculators draft"), ("nowhere", "nowhere")]
)
def test_into_what_is_no_draft(
    pair: Path, capsys: pytest.CaptureFixture[str], folder: str, words: str
) -> None:
    assert run(*SHORT, "--into", folder) == 1
    assert f"--into {folder}: " in (shown := capsys.readouterr().err) and words in shown


def test_the_published_protocol(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draft at K = 3, with a short block as theirs and a whole one, and at 7; its settings, its wordings, and a
    server of its own for each concurrency.
    """
    for name in publication.SETTINGS:
        monkeypatch.setenv(f"T5GEMMA_{name}", "")
    monkeypatch.setenv("T5GEMMA_MAX_MODEL_LEN", "512")
    (pair / "g.jsonl").write_text(json.dumps({"question": "q"}) + "\n")
    started = served_arms(monkeypatch)
    command = ("bench", "--published", "--draft", "d=dflash", "--data", "gsm8k=g.jsonl", "--out", "out")
    assert run(*command, "--no-plots") == 0
    names = ("verifier", "d:3", "d:3:short", "d:7")
    assert started == [arm for arm in names for _ in range(2)]
    found = {name: os.environ[f"T5GEMMA_{name}"] for name in publication.SETTINGS}
    assert found == {**publication.SETTINGS, "MAX_MODEL_LEN": "512"}
    made = report_of(pair / "out")
    assert made["prompt_sets"][0]["template"].startswith("Solve the problem step by step.")
    assert {(row["arm"], row["concurrency"]) for row in made["rows"]} == {
        (arm, at_once) for arm in names for at_once in (1, 4)
    }
    assert run(*command, "--template", "gsm8k={prompt}") == 1


def test_the_ks_that_a_draft_is_measured_at() -> None:
    assert draft_of(DEMO / "dspark") == ("dspark", (3, 7))


def test_texts_are_cut_by_the_verifiers_tokenizer(tmp_path: Path) -> None:
    """By the tokens that the verifier sees, the start token among them."""
    cut = cutter(own_arms("dflash:3", {}, None), None)
    assert cut("six apples and six pens", 99) == "six apples and six pens"
    tokens = len(Tokenizer.from_file(str(DEMO / "verifier" / "tokenizer.json")).encode("six apples").ids)
    assert cut("six apples and six pens", tokens) == "six apples"
    assert cutter([], DEMO / "verifier")("six apples.", tokens) == "six apples"
    with pytest.raises(BenchError, match="give --tokenizer FOLDER"):
        cutter([Arm("x", url="http://server")], None)("a", 1)
    with pytest.raises(BenchError, match=r"tokenizer\.json"):
        cutter([], tmp_path)("a", 1)
