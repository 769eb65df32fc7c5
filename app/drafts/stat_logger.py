"""What feeds the acceptance ledger: a stat logger of vLLM's, in the gateway and in plain `vllm serve` alike.

vLLM loads `ServeLogger` by entry point (`vllm.stat_logger_plugins`) wherever the package is installed; it makes it
itself, without arguments of ours, so the ledger is the process's. The one module of `app.drafts` that imports vLLM.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase, load_stat_logger_plugin_factories

from app.drafts.ledger import Ledger
from app.settings import Settings
from plugin.encoder_counts import encoder_counts

_ledger: Ledger | None = None


def count_into(ledger: Ledger) -> list[type[StatLoggerBase]]:
    """From now on every engine built in this process counts into `ledger`.

    Returns the stat loggers to build the engine with: none where vLLM loads ours by its entry point, which would count
    every step twice; `ServeLogger` where it is not installed or `VLLM_PLUGINS` leaves it out.
    """
    global _ledger
    _ledger = ledger
    return [] if ServeLogger in load_stat_logger_plugin_factories() else [ServeLogger]


def served_ledger(vllm_config: Any) -> Ledger:
    """The one ledger of the process, whose engines (one a data-parallel rank) all count into it."""
    global _ledger
    if _ledger is None:
        speculative = vllm_config.speculative_config
        k = speculative.num_speculative_tokens if speculative is not None else 0
        _ledger = Ledger(k, Settings.model_fields["stats_window_s"].default)
    return _ledger


class ServeLogger(StatLoggerBase):
    """Passes each engine step's draft counters on to the process's ledger, in the front end's event loop."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.ledger, self.engine_index = served_ledger(vllm_config), engine_index

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if (encoder := encoder_counts(scheduler_stats)) is not None:
            self.ledger.encoder.record(self.engine_index, encoder)
        spec = scheduler_stats.spec_decoding_stats if scheduler_stats is not None else None
        if spec is not None:
            self.ledger.record(
                spec.num_drafts,
                spec.num_draft_tokens,
                spec.num_accepted_tokens,
                spec.num_draft_tokens_per_pos,
                spec.num_accepted_tokens_per_pos,
            )

    def log_engine_initialized(self) -> None:
        """The server says so itself."""
