"""The probe's sentence: when it is said, and against which promise (N06)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.bench.check import Trial, Verdict
from app.drafts.probe import Probe, promised_length


@pytest.mark.parametrize(
    ("accepted", "promised", "said"),
    [(9, None, True), (10, None, False), (99, 3.0, True), (100, 3.0, False), (100, None, False)],
)
def test_where_the_sentence_begins(accepted: int, promised: float | None, said: bool) -> None:
    """100 drafts: fewer than 1.1 tokens a step, or less than half of the accepted tokens that were promised."""
    assert (Probe(6, 100, 700, accepted, promised).warning is not None) == said


def test_what_val_metrics_promise(tmp_path: Path) -> None:
    """Of the K that is served; the epoch's own figure is at the largest K."""

    def write(**values: object) -> None:
        (tmp_path / "val_metrics.json").write_text(json.dumps(values))

    assert promised_length(tmp_path, 7, 7) is None
    write(fresh_mean_acceptance_length_k3=3.2, eal_epoch=4.5)
    assert [promised_length(tmp_path, k, 7) for k in (1, 3, 7)] == [None, 3.2, 4.5]
    write(eal_epoch=400)
    assert promised_length(tmp_path, 7, 7) is None
    (tmp_path / "val_metrics.json").write_text("[1")
    assert promised_length(tmp_path, 7, 7) is None


def test_check_says_so() -> None:
    """`t5gemma2 check` of a draft that is never right."""
    trials = tuple(Trial(k, 4, 4, 4, 0, 0.004, 1 + 0.004 * k, 0.7) for k in (1, 7))
    verdict = Verdict(None, trials)  # type: ignore[arg-type]
    assert verdict.conclusion() == (
        "fits and leaves the output alone, but is useless: 1.03 tokens a step at K=7, below 1.1"
    )
    assert verdict.exit_code == 4
