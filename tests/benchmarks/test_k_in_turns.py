"""What is made of the rates of several K in turns, and what the loads ask for."""

from __future__ import annotations

import httpx
import pytest

from app.bench.client import Sampling
from app.completions.request import CompletionRequest
from benchmarks.k_in_turns import LOADS, With, figures, main, report


def test_figures_are_of_rounds() -> None:
    """Ratios are taken within a round and then their median: a machine that drifts does so for a whole round."""
    rates = {
        "0": [100.0, 50.0, 20.0],
        "3": [220.0, 105.0, 44.0],
        "7": [300.0, 100.0, 62.0],
        "auto": [291.0, 99.0, 31.0],
    }
    found = report(rates, [3.3, 2.0, 3.1])
    assert found["speedup"]["7"] == [3.0, 2.0, 3.1] and found["speedup"]["3"] == [2.2, 2.1, 2.2]
    assert found["estimate_over_measured"] == [1.0, 1.0, 1.1]
    assert found["best_k"] == "3" and found["auto_over_best"] == [0.943, 0.705, 1.323]


def test_without_a_baseline() -> None:
    assert report({"7": [2.0]}, []) == {"tokens_per_s": {"7": 2.0}}


@pytest.mark.parametrize("load", LOADS)
def test_what_a_load_asks_for_is_taken(load: str) -> None:
    first, second = (
        With(httpx.AsyncClient(), "m", True, fields=tuple(fields.items())).body("Hi", Sampling())
        for fields in LOADS[load]
    )
    for body in (first, second):
        CompletionRequest.model_validate(body)
    assert (first["temperature"], second["temperature"]) == {
        "problems": (0, 0),
        "change": (0, 2.0),
        "unpaid": (2.0, 2.0),
        "schema": (0, 0),
    }[load]
    assert ("response_format" in first, "response_format" in second) == (load == "schema",) * 2


def test_an_estimate_belongs_to_its_round() -> None:
    found = report({"0": [1.0, 1.0, 1.0], "7": [4.0, 2.0, 1.0]}, [None, 3.0, 1.0])
    assert (found["estimate"], found["estimate_over_measured"]) == (2.0, [1.25, 1.0, 1.5])


def test_figures_by_name() -> None:
    assert figures(
        {
            ("problems", 1): report({"0": [1.0], "7": [2.0], "auto": [1.5]}, [3.0]),
            ("change", 4): report({"0": [1.0]}, [None]),
        }
    ) == {"estimate_over_measured_problems_bs1": 1.5, "auto_over_best_problems_bs1": 0.75}


@pytest.mark.parametrize(
    "words",
    [["--ks", "auto"], ["--ks", "3,x"], ["--load", "problem"], ["--full-size", "4"], ["--full-size", "x"]],
)
def test_wrong_flags_are_told_at_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert words[0] in capsys.readouterr().err
