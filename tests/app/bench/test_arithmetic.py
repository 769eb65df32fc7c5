"""The benchmark's arithmetic, by hand and by property."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.arithmetic import ChunkTimes, ratio, spread_ms

seconds = st.floats(min_value=0, max_value=1e4, allow_nan=False)


def test_inter_chunk_and_per_token_times_are_two_numbers() -> None:
    """8 chunks 100 ms apart that carry 20 tokens: chunks are not tokens (F02)."""
    timing = ChunkTimes(10.0, [10.3 + 0.1 * i for i in range(8)])
    assert timing.ttft == pytest.approx(0.3)
    assert timing.itl == pytest.approx([0.1] * 7)
    assert timing.tpot(20) == pytest.approx(0.7 / 19)
    assert timing.latency == pytest.approx(1.0)


def test_no_chunk_has_no_time() -> None:
    timing = ChunkTimes(1.0)
    assert (timing.ttft, timing.latency, timing.itl, timing.tpot(5)) == (None, None, [], None)


def test_one_token_has_no_time_per_token() -> None:
    assert ChunkTimes(1.0, [2.0]).tpot(1) is None


@given(st.lists(seconds, min_size=1))
def test_spread(values: list[float]) -> None:
    spread = spread_ms(values)
    assert spread is not None
    assert spread["mean"] == pytest.approx(statistics.fmean(values) * 1000)
    assert spread["p50"] == pytest.approx(statistics.median(values) * 1000)
    least, most = min(values) * 1000, max(values) * 1000
    ordered = [least, spread["p50"], spread["p95"], spread["p99"], most]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(ordered))


def test_spread_of_known_values() -> None:
    """1 ... 100 ms: linear interpolation between neighbours, as numpy and vLLM do it."""
    spread = spread_ms([i / 1000 for i in range(1, 101)])
    assert spread == pytest.approx({"mean": 50.5, "p50": 50.5, "p95": 95.05, "p99": 99.01})


def test_spread_leaves_out_what_is_missing() -> None:
    assert spread_ms([None, 0.5, None]) == {"mean": 500.0, "p50": 500.0, "p95": 500.0, "p99": 500.0}
    assert spread_ms([None]) is None


@given(st.floats(0, 1e9), st.floats(1e-6, 1e9))
def test_ratio(part: float, whole: float) -> None:
    found = ratio(part, whole)
    assert found is not None
    assert found * whole == pytest.approx(part)


@pytest.mark.parametrize(("part", "whole"), [(1.0, 0.0), (0.0, 0.0), (None, 2.0), (2.0, None)])
def test_ratio_without_a_base(part: float | None, whole: float | None) -> None:
    """A zero base gives null (F06)."""
    assert ratio(part, whole) is None


@given(seconds, st.lists(seconds, min_size=2, max_size=30), st.integers(2, 500))
def test_times_add_up(sent: float, gaps: list[float], tokens: int) -> None:
    """TTFT + all ITL = latency, and TPOT spreads what follows the first chunk over the tokens after the first."""
    chunks, now = [], sent
    for gap in gaps:
        now += gap
        chunks.append(now)
    timing = ChunkTimes(sent, list(chunks))
    ttft, latency, tpot = timing.ttft, timing.latency, timing.tpot(tokens)
    assert ttft is not None and latency is not None and tpot is not None
    assert ttft + sum(timing.itl) == pytest.approx(latency, abs=1e-6)
    assert ttft + tpot * (tokens - 1) == pytest.approx(latency, abs=1e-6)
