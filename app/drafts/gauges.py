"""The ledger, the estimate and the identity as Prometheus metrics named `t5gemma_*`, computed at scrape time.

Nothing here is called `vllm:*`: the engine's own counters stay untouched beside these, since tools scrape them by
prefix. What cannot be known, a rate without traffic above all, is NaN, which Prometheus draws as a gap and not as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from app.drafts.drafting import Drafting
from app.drafts.encoder_totals import EncoderTotals
from app.drafts.estimate import Speedup
from app.drafts.identity import Identity

_SUMS = {
    "t5gemma_drafts": ("Draft steps", "drafts"),
    "t5gemma_draft_tokens": ("Draft tokens proposed", "draft_tokens"),
    "t5gemma_accepted_tokens": ("Draft tokens accepted", "accepted_tokens"),
}


class DraftCollector(Collector):
    """Collects for one server; all is asked at scrape time, `in_flight` in sequences."""

    def __init__(
        self,
        served: Callable[[], tuple[Identity, Drafting]],
        ready: Callable[[], bool],
        in_flight: Callable[[], int],
    ) -> None:
        self._served = served
        self._ready, self._in_flight = ready, in_flight

    def collect(self) -> Iterator[Metric]:
        identity, drafting = self._served()
        yield GaugeMetricFamily("t5gemma_ready", "1 while requests are served", float(self._ready()))
        yield GaugeMetricFamily(
            "t5gemma_sequences_in_flight", "Sequences running or waiting in the gateway", self._in_flight()
        )
        yield self._info(identity, drafting)
        yield from _encoder(drafting.ledger.encoder)
        if identity.k is not None:
            yield from _totals(drafting)
            yield from _rates(drafting)
            yield from _worth(drafting)

    def _info(self, identity: Identity, drafting: Drafting) -> Metric:
        draft = identity.draft
        labels = {
            "model_name": identity.model_name,
            "verifier": identity.verifier.name,
            "draft": draft.name if draft else "none",
            "family": draft.family if draft else "none",
            "k": str(drafting.k),
            "block_size": str(draft.block_size if draft else 0),
        }
        return InfoMetricFamily("t5gemma_draft", "What is loaded", labels)


def _ks(drafting: Drafting) -> list[int]:
    """Every K that was used, and the present one."""
    return sorted({*drafting.ledger.ks, drafting.k})


def _encoder(encoder: EncoderTotals) -> Iterator[Metric]:
    for name, text, value in (
        ("hits", "Requests whose prompt's encoder states were held already", encoder.hits),
        ("misses", "Requests whose prompt was encoded", encoder.misses),
        ("tokens_saved", "Prompt tokens of the hits", encoder.tokens_saved),
        ("tokens_encoded", "Prompt tokens of the misses", encoder.tokens_encoded),
    ):
        yield CounterMetricFamily(f"t5gemma_encoder_cache_{name}", text, value)
    yield GaugeMetricFamily("t5gemma_encoder_cache_bytes", "Encoder states held", encoder.bytes_held)
    text = "Sequences that run with their encoder states"
    yield GaugeMetricFamily("t5gemma_encoder_cache_requests", text, encoder.requests)


def _totals(drafting: Drafting) -> Iterator[Metric]:
    ledger = drafting.ledger
    for name, (text, field) in _SUMS.items():
        family = CounterMetricFamily(name, f"{text} since the server started, by K", labels=["k"])
        for k in _ks(drafting):
            family.add_metric([str(k)], getattr(ledger.lifetime(k), field))
        yield family
    yield CounterMetricFamily(
        "t5gemma_draft_steps_refused",
        "Engine steps whose draft counts were negative, not finite or more than was drafted",
        ledger.refused,
    )
    changes = CounterMetricFamily("t5gemma_draft_k_changes", "Changes of K, by who made them", labels=["by"])
    for who, count in drafting.changes.items():
        changes.add_metric([who], count)
    yield changes
    yield CounterMetricFamily(
        "t5gemma_draft_measuring_steps",
        "Engine steps at another K than the chosen one, to know what it is worth",
        drafting.controller.measuring_steps,
    )


def _rates(drafting: Drafting) -> Iterator[Metric]:
    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"t5gemma_draft_{name}", text, labels=["k", "window", *labels])

    rate = gauge("acceptance_rate", "Accepted / draft tokens")
    length = gauge("mean_acceptance_length", "1 + accepted / drafts")
    position = gauge("position_acceptance_rate", "Accepted at the position / drafts", "position")
    conditional = gauge(
        "position_conditional_acceptance_rate",
        "Accepted at the position / drafts that reached it",
        "position",
    )
    for k in _ks(drafting):
        for window, counts in (
            ("lifetime", drafting.ledger.lifetime(k)),
            ("window", drafting.ledger.window(k)),
        ):
            rate.add_metric([str(k), window], _number(counts.acceptance_rate))
            length.add_metric([str(k), window], _number(counts.mean_acceptance_length))
            for i in range(k):
                position.add_metric([str(k), window, str(i)], _number(counts.rate(i)))
                conditional.add_metric([str(k), window, str(i)], _number(counts.conditional_rate(i)))
    yield from (rate, length, position, conditional)


def _worth(drafting: Drafting) -> Iterator[Metric]:
    known = drafting.estimator.snapshot()
    speedup = known.speedup(drafting.k) if known is not None else None
    found = speedup if isinstance(speedup, Speedup) else None
    recommended = known.recommendation(drafting.k).k if known is not None else None
    gauges: tuple[tuple[str, str, float | None], ...] = (
        ("k", "Draft tokens a step, as chosen", drafting.k),
        ("k_auto", "1 while K is chosen by what proves fastest", float(drafting.asked == "auto")),
        ("recommended_k", "The K that proves fastest at the present batch size", recommended),
        ("speedup", "Estimated tokens/s over no draft, at the present K", found.value if found else None),
        (
            "speedup_overall",
            "The same with the time that no draft shortens",
            found.overall if found else None,
        ),
        ("speedup_low", "The same less two standard errors", found.low if found else None),
        ("speedup_high", "The same and two standard errors", found.high if found else None),
        (
            "baseline_age_seconds",
            "Since a step without a draft was timed last",
            found.age_s if found else None,
        ),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(f"t5gemma_draft_{name}", text, _number(value))
    steps = GaugeMetricFamily(
        "t5gemma_draft_step_seconds",
        "Median duration of an engine step in batches of this size",
        labels=["k", "batch"],
    )
    if known is not None:
        for k, timed in known.seconds.items():
            steps.add_metric([str(k), str(known.batch)], timed.value)
    yield steps


def _number(value: float | None) -> float:
    return math.nan if value is None else value
