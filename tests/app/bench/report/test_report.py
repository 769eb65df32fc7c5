"""Rows, words, Markdown, terminal table and plots of a report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.bench.arithmetic import spread_ms
from app.bench.equality import Difference, compare
from app.bench.report import text
from app.bench.report.html import page
from app.bench.report.markdown import markdown
from app.bench.report.plots import acceptance_figure, draw, speedup_figure
from app.bench.report.report import build, rows
from app.bench.report.table import table

PROTOCOL = {
    "max_tokens": 128,
    "seed": 0,
    "temperature": 0,
    "ignore_eos": False,
    "json_schema_sha256": None,
    "warmup": 8,
    "concurrency": [1],
}


def record(arm: str, speed: float | None, k: int | None = None, **changes: Any) -> dict[str, Any]:
    """A cell's record as `cell.numbers` gives it."""
    positions = [
        {"position": i, "accepted": 90 - 10 * i, "rate": 0.9 - 0.1 * i, "conditional_rate": 0.9}
        for i in range(k or 0)
    ]
    acceptance = {
        "source": "/metrics",
        "drafts": 100,
        "draft_tokens": 100 * (k or 0),
        "accepted_tokens": sum(position["accepted"] for position in positions),
        "acceptance_rate": 0.75,
        "mean_acceptance_length": 3.25,
        "per_position": positions,
    }
    spread = spread_ms([0.01, 0.02, 0.03])
    return {
        "key": "0",
        "partial": False,
        "arm": arm,
        "family": "dflash" if k else None,
        "k": k,
        "model": "demo",
        "drafts": {"family": "dflash", "draft": "/home/me/demo/dflash", "verifier": {"name": "/home/me/v"}},
        "server": {"version": "0.1.0", "vllm": "0.32.0"},
        "set": "gsm8k",
        "concurrency": 1,
        "warmup": 8,
        "prompts": 3,
        "completed": 3,
        "failed": 0,
        "failures": {},
        "finish_reasons": {"stop": 3},
        "errors": [],
        "prompt_tokens": 30,
        "output_tokens": 300,
        "token_source": "usage",
        "chunks": 100,
        "seconds": 3.0,
        "output_tokens_per_s": speed,
        "requests_per_s": 1.0,
        "latency_ms": spread,
        "ttft_ms": spread,
        "itl_ms": spread,
        "tpot_ms": spread,
        "acceptance": acceptance if k else None,
        "outputs": {"token_ids": [[1, 2, 3], [4, 5], [6]], "texts": ["a", "b", "c"]},
        **changes,
    }


def report(records: list[dict[str, Any]], base: str | None = "verifier", **changes: Any) -> dict[str, Any]:
    sets = [{"name": "gsm8k", "source": "x.jsonl", "template": "{prompt}", "prompts": 3, "sha256": "ab" * 32}]
    given = {"command": "t5gemma2 bench", "protocol": PROTOCOL, "sets": sets, "missing": [], **changes}
    return build(base=base, records=records, **given)


SWEEP = [
    record("verifier", 100.0),
    record("dflash:1", 80.0, 1),
    record("dflash:3", 150.0, 3),
    record("dflash:7", 200.0, 7),
]


def rendered(made: dict[str, Any]) -> str:
    console = Console(width=200, record=True, file=None)
    with console.capture() as capture:
        console.print(table(made))
    return capture.get()


def test_speedup_below_one_is_printed_as_it_is() -> None:
    """Base 100 tok/s, draft 80 tok/s; a sweep of K has a row each, the base's row among them (F06)."""
    made = report(SWEEP)
    assert [(row["arm"], row["speedup"]) for row in made["rows"]] == [
        ("verifier", 1.0),
        ("dflash:1", 0.8),
        ("dflash:3", 1.5),
        ("dflash:7", 2.0),
    ]
    for shown in (markdown(made), rendered(made)):
        assert all(words in shown for words in ("0.80×", "1.00×", "1.50×", "2.00×"))
    sections = markdown(made).split("## Acceptance")[1]
    for k in (1, 3, 7):
        assert f"| gsm8k | 1 | dflash:{k} | {k} | 75.0 % | 3.25 | 100 |" in sections
    assert "| gsm8k | 1 | dflash:3 | 3 | 90.0 % | 80.0 % | 70.0 % | – | – | – | – |" in sections


@pytest.mark.parametrize("speed", [0.0, None])
def test_a_base_without_tokens_gives_null(speed: float | None) -> None:
    """A speed-up over nothing is no division error (F06)."""
    nothing = {"output_tokens": 0, "completed": 0, "failed": 3, "failures": {"HTTP 500": 2, "timed out": 1}}
    nothing |= {"errors": ["x"], "token_source": None}
    nothing |= dict.fromkeys(("latency_ms", "ttft_ms", "itl_ms", "tpot_ms"))
    made = report([record("verifier", speed, **nothing), record("dflash:7", 80.0, 7)])
    assert [row["speedup"] for row in made["rows"]] == [None, None]
    words = "3 requests failed (2 × HTTP 500, 1 × timed out): x"
    assert words in markdown(made) and words in rendered(made)


def test_an_arm_without_tokens() -> None:
    """A draft that made no token has the speed-up 0, not null (F06)."""
    made = report([record("verifier", 100.0), record("dflash:7", 0.0, 7, output_tokens=0)])
    assert made["rows"][1]["speedup"] == 0.0 and "0.00×" in markdown(made)


def test_answers_without_an_end_are_no_json() -> None:
    """With a schema the report says how many --max-tokens cut off; without one they are ordinary answers."""
    cut = [record("verifier", 100.0, finish_reasons={"length": 2, "stop": 1}, completed=3)]
    words = "2 of 3 answers were cut off by --max-tokens before their schema ended"
    assert words not in markdown(report(cut))
    shown = markdown(report(cut, protocol={**PROTOCOL, "json_schema_sha256": "cd" * 32}))
    assert words in shown and f"held to a JSON schema (sha256 `{'cd' * 32}`)" in shown


def test_rows_compare_within_set_and_concurrency() -> None:
    made = rows(
        [
            record("verifier", 100.0),
            record("verifier", 400.0, concurrency=4),
            record("verifier", 50.0, set="mbpp"),
            record("dflash:7", 200.0, 7),
            record("dflash:7", 500.0, 7, concurrency=4),
            record("dflash:7", 150.0, 7, set="mbpp"),
        ],
        "verifier",
    )
    assert [(row["set"], row["concurrency"], row["arm"], row["speedup"]) for row in made] == [
        ("gsm8k", 1, "verifier", 1.0),
        ("gsm8k", 1, "dflash:7", 2.0),
        ("gsm8k", 4, "verifier", 1.0),
        ("gsm8k", 4, "dflash:7", 1.25),
        ("mbpp", 1, "verifier", 1.0),
        ("mbpp", 1, "dflash:7", 3.0),
    ]
    assert not {"outputs", "drafts", "key"} & set(made[0])


def test_no_base() -> None:
    made = report(SWEEP[1:], base=None)
    assert {row["speedup"] for row in made["rows"]} == {None}
    assert {row["equality"] for row in made["rows"]} == {None}
    assert "No base arm" in markdown(made)


def test_partial_results_are_marked() -> None:
    part = record("dflash:7", 90.0, 7, partial=True, completed=1, acceptance=None)
    made = report([record("verifier", 100.0), part], missing=["dflare_3.gsm8k.c1"])
    assert made["partial"] and made["rows"][1]["speedup"] is None
    for shown in (markdown(made), rendered(made)):
        assert "dflash:7 (partial: 1 of 3)" in shown
        assert "Partial result: 1 cells were not measured." in shown
    assert not report(SWEEP)["partial"]


def test_equality_is_told_with_its_first_difference() -> None:
    other = {"token_ids": [[1, 2, 3], [4, 7], [6]], "texts": ["a", "b", "c"]}
    made = report([record("verifier", 100.0), record("dflash:7", 200.0, 7, outputs=other)])
    assert made["rows"][1]["equality"] == {
        "by": "token_ids",
        "compared": 3,
        "equal": 2,
        "first_difference": {"prompt": 1, "position": 1, "base": 5, "arm": 7},
    }
    assert made["rows"][0]["equality"] is None
    assert "the first difference is in prompt 1 at token 1: 5 became 7." in markdown(made)


def test_retokenised_counts_and_raised_warmups_are_marked() -> None:
    """A reader sees that tokens were counted from text (F02), and that more warm-ups were sent than asked (F03)."""
    made = report([record("verifier", 100.0, token_source="retokenised", warmup=16, concurrency=16)])
    assert "300 (retokenised)" in markdown(made)
    assert "Warm-up was raised from 8 to the concurrency: 16 requests." in markdown(made)
    assert made["rows"][0]["warmup"] == 16


def test_the_report_says_what_it_stands_on_and_no_path() -> None:
    made = report(SWEEP, command="t5gemma2 bench --arms verifier,dflash:7")
    shown = markdown(made)
    assert "t5gemma2 bench --arms verifier,dflash:7" in shown and "ab" * 32 in shown
    assert "/home/me" not in shown and "draft dflash" in shown and "server version 0.1.0 vllm 0.32.0" in shown
    assert made["client"]["versions"]["python"] and made["client"]["hardware"]["cores"] >= 1


def test_plots(tmp_path: Path) -> None:
    """Both plots in both formats, the same files for the same report."""
    made = report(SWEEP)
    assert draw(made, tmp_path) == ["speedup.png", "acceptance.png"]
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(first) == {"speedup.png", "speedup.svg", "acceptance.png", "acceptance.svg"}
    assert first["speedup.png"].startswith(b"\x89PNG") and b"<svg" in first["speedup.svg"]
    draw(made, tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == first


def test_what_is_plotted() -> None:
    """A bar for each arm and set, one panel a concurrency; a curve for each arm over its own positions."""
    both = [*SWEEP, *(record(r["arm"], 2 * r["output_tokens_per_s"], r["k"], concurrency=4) for r in SWEEP)]
    made = rows(both, "verifier")
    one, four = speedup_figure([row for row in made if row["arm"] != "verifier"]).axes
    for panel in (one, four):
        assert [bar.get_height() for bar in panel.patches] == [0.8, 1.5, 2.0]
    assert (one.get_title(), four.get_title()) == ("concurrency 1", "concurrency 4")
    (panel,) = acceptance_figure([row for row in made if row["acceptance"]]).axes
    curves = {str(line.get_label()): list(line.get_ydata()) for line in panel.lines}
    assert curves["dflash:3"] == pytest.approx([0.9, 0.8, 0.7])
    assert [len(curve) for curve in curves.values()] == [1, 3, 7]


def test_nothing_to_plot(tmp_path: Path) -> None:
    assert draw(report([record("verifier", 100.0)]), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_page_holds_all_that_the_markdown_does(tmp_path: Path) -> None:
    """Tables and pictures in one file; what a server said stays text."""
    made = report([*SWEEP[:3], record("dflash:7", 9.0, 7, failed=1, failures={"x": 1}, errors=["<b>no</b>"])])
    shown = page(markdown(made, draw(made, tmp_path)), tmp_path)
    assert shown.count("<table>") == 5 and shown.count("<svg") == 2 and "<img" not in shown
    assert "&lt;b&gt;no&lt;/b&gt;" in shown and "<b>" not in shown and "<title>Benchmark</title>" in shown
    assert "<td>1.50×</td>" in shown


outputs = st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=6)


@given(outputs, st.data())
def test_compare(base: list[list[int]], data: st.DataObject) -> None:
    """Every difference is real and is the first of its prompt; everything else is equal."""
    size = len(base)
    arm = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=size, max_size=size))
    found = compare({"token_ids": base, "texts": []}, {"token_ids": arm, "texts": []})
    assert found.compared == size and found.equal == sum(a == b for a, b in zip(base, arm, strict=True))
    for one in found.differences:
        wanted, got, at = base[one.prompt], arm[one.prompt], one.position
        assert wanted[:at] == got[:at]
        assert (wanted[at : at + 1], got[at : at + 1]) == (
            [one.base] if one.base is not None else [],
            [one.arm] if one.arm is not None else [],
        )
        assert one.base != one.arm


def test_compare_by_text_and_without_failures() -> None:
    by_ids = {"token_ids": [[1], None, [3]], "texts": ["one", None, "three"]}
    by_text = {"token_ids": None, "texts": ["one", "two", "thref"]}
    found = compare(by_ids, by_text)
    assert (found.by, found.compared, found.equal) == ("texts", 2, 1)
    assert found.differences == (Difference(2, 4, "e", "f"),)


def test_numbers_in_words() -> None:
    assert [text.number(None), text.percent(None), text.speedup(None)] == ["–", "–", "–"]
    assert (text.number(1.25, 2), text.percent(0.5), text.speedup(0.8)) == ("1.25", "50.0 %", "0.80×")
    assert text.spread({"p50": math.pi, "p95": 2.0}, "p50", "p95") == "3.1 / 2.0"
