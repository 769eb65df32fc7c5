"""What the encoder and its cache did since the server started: sums over the engines, fed by their stat loggers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from plugin.encoder_counts import EncoderCounts


@dataclass(slots=True)
class EncoderTotals:
    """Requests (each sample of one counts) whose prompt's encoder states were held already, or were computed, and the
    prompt tokens of both.
    """

    hits: int = 0
    misses: int = 0
    tokens_saved: int = 0
    tokens_encoded: int = 0
    _latest: dict[int, EncoderCounts] = field(default_factory=dict)

    def record(self, engine: int, counts: EncoderCounts) -> None:
        """One engine's counts since its last."""
        self.hits += counts.hits
        self.misses += counts.misses
        self.tokens_saved += counts.tokens_saved
        self.tokens_encoded += counts.tokens_encoded
        self._latest[engine] = counts

    def forget_held(self) -> None:
        """The engines are gone, and with them what they held; what they did still counts."""
        self._latest.clear()

    @property
    def bytes_held(self) -> int:
        """Encoder states that are kept, all engines together."""
        return sum(counts.bytes_held for counts in self._latest.values())

    @property
    def requests(self) -> int:
        """Sequences that run with their encoder states, all engines together."""
        return sum(counts.requests for counts in self._latest.values())

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        sums = {name: value for name, value in asdict(self).items() if not name.startswith("_")}
        return {**sums, "bytes_held": self.bytes_held}
