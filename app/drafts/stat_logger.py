"""What feeds the acceptance ledger: a stat logger of vLLM's, in the gateway and in plain `vllm serve` alike.

vLLM loads `ServeLogger` by entry point (`vllm.stat_logger_plugins`) wherever the package is installed; it makes it
itself, without arguments of ours, so the ledger is the process's. The one module of `app.drafts` that imports vLLM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase, load_stat_logger_plugin_factories

from app.config.settings import Settings
from app.drafts.ledger import Ledger, StepRecorder
from plugin.drafts.steps import step_stats
from plugin.encoder_counts import encoder_counts

_ledger: StepRecorder | None = None


def count_into(ledger: StepRecorder) -> list[type[StatLoggerBase]]:
    """From now on every engine built in this process counts into `ledger`.

    Returns the stat loggers to build the engine with: none where vLLM loads ours by its entry point, which would count
    every step twice; `ServeLogger` where it is not installed or `VLLM_PLUGINS` leaves it out.
    """
    global _ledger
    _ledger = ledger
    return [] if ServeLogger in load_stat_logger_plugin_factories() else [ServeLogger]


def served_ledger() -> StepRecorder:
    """The one ledger of the process, whose engines (one a data-parallel rank) all count into it."""
    global _ledger
    if _ledger is None:
        _ledger = Ledger(Settings.model_fields["stats_window_s"].default)
    return _ledger


class ServeLogger(StatLoggerBase):
    """Passes what each engine step says on to the process's ledger, in the front end's event loop."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.ledger, self.engine_index = served_ledger(), engine_index

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if (encoder := encoder_counts(scheduler_stats)) is not None:
            self.ledger.encoder.record(self.engine_index, encoder)
        if (step := step_stats(scheduler_stats)) is not None:
            tokens = None if iteration_stats is None else iteration_stats.num_generation_tokens
            self.ledger.record(replace(step, tokens=tokens))

    def log_engine_initialized(self) -> None:
        """The server says so itself."""
