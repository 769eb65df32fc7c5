"""From seconds to the figures, under the names that BENCHMARKS.md and the results file have."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.engine.turns import Seconds, Work
from plugin.drafts.families import FAMILIES

K = 7
ACCEPTANCE_LENGTH = 4.0
"""Tokens a step of the synthetic acceptance."""
FIRST, SOME = 1, 32
"""New tokens of the time to the first token, and of the run that is taken off for the rate of later steps."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over rounds, and the least and most of them."""

    value: float
    low: float
    high: float
    rounds: int


def median(values: Sequence[float]) -> Figure:
    """The median of `values` with their range."""
    return Figure(statistics.median(values), min(values), max(values), len(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> Figure:
    """Of the ratios round by round: what slows the machine for a while slows both arms of a round."""
    return median([a / b for a, b in zip(above, below, strict=False)])


def time_figures(seconds: Seconds, new_tokens: int) -> dict[str, Figure]:
    """What the wall times of the runs say; a figure whose arms are missing is left out."""
    found: dict[str, Figure] = {}

    def add(name: str, work: Work, above: str, below: str) -> None:
        arms = seconds.get(work, {})
        if arms.get(above) and arms.get(below):
            found[name] = ratio(arms[above], arms[below])

    for batch in sorted({work.batch for work in seconds}):
        whole = Work(batch, new_tokens)
        add(f"ttft_over_decoder_only_bs{batch}", Work(batch, FIRST), "raw", "decoder_only")
        add(f"raw_over_decoder_only_bs{batch}", whole, "decoder_only", "raw")
        add(f"raw_over_transformers_bs{batch}", whole, "transformers", "raw")
        for family in FAMILIES:
            add(f"speedup_{family}_k{K}_bs{batch}", whole, "raw", family)
    return found


def graph_figures(
    graphs: Mapping[str, Mapping[str, Sequence[float]]], attention_us: Sequence[float], floor_s: float | None
) -> dict[str, Figure]:
    """What the captured graphs say.

    Args:
        graphs: by arm, GPU seconds of the replays of "verify" (one token a request for `raw`) and "draft", batch 1.
        attention_us: microseconds a layer of the merged attention inside the verify graph at K = 7, batch 1.
        floor_s: seconds that the memory needs for the decoder's and the head's bytes.
    """
    found: dict[str, Figure] = {}
    for family in FAMILIES:
        times = graphs.get(family, {})
        if times.get("draft") and times.get("verify"):
            found[f"draft_over_verify_{family}"] = ratio(times["draft"], times["verify"])
    replay = graphs.get("raw", {}).get("verify", ())
    if replay and floor_s:
        found["raw_graph_over_floor_bs1"] = ratio(replay, [floor_s] * len(replay))
    if attention_us:
        found[f"attention_us_k{K}_bs1_short"] = median(attention_us)
    return found


def host_figures(
    seconds: Seconds, busy: Mapping[tuple[str, int], Mapping[int, float]], new_tokens: int
) -> dict[str, Figure]:
    """Steps a second after the first, and, without a draft, the share of such a step in which the GPU works: how many
    steps a short run with a draft takes is not known to the step.

    `busy`: by arm and batch, GPU seconds of whole runs of `FIRST` and `SOME` tokens.
    """
    found: dict[str, Figure] = {}
    for batch in sorted({work.batch for work in seconds}):
        whole, some = seconds.get(Work(batch, new_tokens), {}), seconds.get(Work(batch, SOME), {})
        for name in ("decoder_only", "raw", *FAMILIES):
            if not (whole.get(name) and some.get(name)):
                continue
            a_step = ACCEPTANCE_LENGTH if name in FAMILIES else 1.0
            steps = (new_tokens - SOME) / a_step
            spans = [one - other for one, other in zip(whole[name], some[name], strict=False)]
            middle = statistics.median(whole[name]) - statistics.median(some[name])
            rates = [steps / span for span in spans if span > 0] or [steps / middle]
            found[f"steps_per_second_{name}_bs{batch}"] = Figure(
                steps / middle, min(rates), max(rates), len(rates)
            )
            gpu = busy.get((name, batch))
            if gpu and name not in FAMILIES:
                share = (gpu[SOME] - gpu[FIRST]) / (SOME - FIRST) / (middle / steps)
                found[f"gpu_share_{name}_bs{batch}"] = median([share])
    return found


def as_json(found: Mapping[str, Figure]) -> dict[str, Any]:
    """Figures for the details of the results file."""
    return {name: asdict(figure) for name, figure in found.items()}
