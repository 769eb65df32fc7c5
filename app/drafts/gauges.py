"""The ledger and the identity as Prometheus metrics named `t5gemma_*`, computed at scrape time.

Nothing here is called `vllm:*`: the engine's own counters stay untouched beside these, since tools scrape them by
prefix. Without traffic a gauge is NaN, which Prometheus draws as a gap rather than as a rate of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from app.drafts.identity import Identity
from app.drafts.ledger import Counts, Ledger


class DraftCollector(Collector):
    """Collects for one server; `ready` and `in_flight` (sequences) are asked at scrape time."""

    def __init__(
        self, identity: Identity, ledger: Ledger, ready: Callable[[], bool], in_flight: Callable[[], int]
    ) -> None:
        self._identity, self._ledger = identity, ledger
        self._ready, self._in_flight = ready, in_flight

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("t5gemma_ready", "1 while requests are served", float(self._ready()))
        yield GaugeMetricFamily(
            "t5gemma_sequences_in_flight", "Sequences running or waiting in the gateway", self._in_flight()
        )
        yield self._info()
        yield from self._encoder()
        if self._identity.k is not None:
            yield from self._totals(self._ledger.lifetime())
            yield CounterMetricFamily(
                "t5gemma_draft_steps_refused",
                "Engine steps whose draft counts were negative, not finite or more than was drafted",
                self._ledger.refused,
            )
            yield from self._rates({"lifetime": self._ledger.lifetime(), "window": self._ledger.window()})

    def _info(self) -> Metric:
        one, draft = self._identity, self._identity.draft
        labels = {
            "model_name": one.model_name,
            "verifier": one.verifier.name,
            "draft": draft.name if draft else "none",
            "family": draft.family if draft else "none",
            "k": str(one.k or 0),
            "block_size": str(draft.block_size if draft else 0),
        }
        return InfoMetricFamily("t5gemma_draft", "What is loaded", labels)

    def _encoder(self) -> Iterator[Metric]:
        encoder = self._ledger.encoder
        for name, text, value in (
            ("hits", "Requests whose prompt's encoder states were held already", encoder.hits),
            ("misses", "Requests whose prompt was encoded", encoder.misses),
            ("tokens_saved", "Prompt tokens of the hits", encoder.tokens_saved),
            ("tokens_encoded", "Prompt tokens of the misses", encoder.tokens_encoded),
        ):
            yield CounterMetricFamily(f"t5gemma_encoder_cache_{name}", text, value)
        yield GaugeMetricFamily("t5gemma_encoder_cache_bytes", "Encoder states held", encoder.bytes_held)

    def _totals(self, counts: Counts) -> Iterator[Metric]:
        for name, text, value in (
            ("t5gemma_drafts", "Draft steps", counts.drafts),
            ("t5gemma_draft_tokens", "Draft tokens proposed", counts.draft_tokens),
            ("t5gemma_accepted_tokens", "Draft tokens accepted", counts.accepted_tokens),
        ):
            yield CounterMetricFamily(name, f"{text} since the server started", value)

    def _rates(self, spans: dict[str, Counts]) -> Iterator[Metric]:
        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"t5gemma_draft_{name}", text, labels=["window", *labels])

        rate = gauge("acceptance_rate", "Accepted / draft tokens")
        length = gauge("mean_acceptance_length", "1 + accepted / drafts")
        position = gauge("position_acceptance_rate", "Accepted at the position / drafts", "position")
        conditional = gauge(
            "position_conditional_acceptance_rate",
            "Accepted at the position / drafts that reached it",
            "position",
        )
        for window, counts in spans.items():
            rate.add_metric([window], _number(counts.acceptance_rate))
            length.add_metric([window], _number(counts.mean_acceptance_length))
            for i in range(counts.k):
                position.add_metric([window, str(i)], _number(counts.rate(i)))
                conditional.add_metric([window, str(i)], _number(counts.conditional_rate(i)))
        yield from (rate, length, position, conditional)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
