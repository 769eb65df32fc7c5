"""The stat logger that vLLM makes by its entry point: every step counts once, in the process's one ledger."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.drafts import stat_logger
from app.drafts.ledger import Ledger
from app.drafts.stat_logger import ServeLogger, count_into
from plugin.drafts.checkpoint import DEMO
from plugin.drafts.steps import STEP_FIELD, StepStats
from plugin.encoder_counts import EncoderCounts

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stat_logger, "_ledger", None)


def running(model: str, draft: str | None, k: int = 3) -> Any:
    """An engine configuration as vLLM's server holds it."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=model,
            dtype="torch.float32",
            max_model_len=64,
            hf_config=SimpleNamespace(max_source_positions=128),
        ),
        speculative_config=SimpleNamespace(model=draft, num_speculative_tokens=k) if draft else None,
        scheduler_config=SimpleNamespace(max_num_seqs=2),
    )


def step(drafts: int, taken: tuple[int, ...]) -> Any:
    """vLLM's statistics of a step with drafts of as many tokens as `taken` has positions."""
    k = len(taken)
    return SimpleNamespace(**{STEP_FIELD: StepStats(k, drafts, 0.01, {k: (drafts, taken)})})


def test_the_project_names_the_logger() -> None:
    """As installed from this tree, whatever the environment has installed."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (name,) = points["vllm.stat_logger_plugins"].values()
    assert EntryPoint("t5gemma2", name, "vllm.stat_logger_plugins").load() is ServeLogger


@pytest.mark.parametrize("installed", [True, False])
def test_the_gateway_counts_every_step_once(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the entry point vLLM makes the logger, without it the gateway gives it; either way into its own ledger."""
    by_entry_point: list[Any] = [ServeLogger] if installed else []
    monkeypatch.setattr(stat_logger, "load_stat_logger_plugin_factories", lambda: list(by_entry_point))
    ledger, config = Ledger(60), running(str(DEMO / "verifier"), str(DEMO / "dflash"))
    made = [factory(config, 0) for factory in [*count_into(ledger), *by_entry_point]]
    for logger in made:
        logger.record(step(2, (2, 1, 1)), None)
    assert (len(made), ledger.lifetime(3).drafts, ledger.lifetime(3).accepted) == (1, 2, [2, 1, 1])


def test_tokens_are_those_that_clients_receive() -> None:
    """vLLM's front end counts them: what was accepted behind an answer's end is in none."""
    seen: list[StepStats] = []
    count_into(SimpleNamespace(record=seen.append))  # type: ignore[arg-type]
    logger = ServeLogger(running(str(DEMO / "verifier"), str(DEMO / "dflash")))
    for iteration in (SimpleNamespace(num_generation_tokens=3), None):
        logger.record(step(2, (2, 1, 1)), iteration)
    assert [(each.tokens, each.num_tokens) for each in seen] == [(3, 3), (None, 6)]


def test_steps_without_drafts_count_nothing() -> None:
    config = running(str(DEMO / "verifier"), str(DEMO / "dflash"))
    logger = ServeLogger(config)
    logger.record(None, None)
    logger.record(SimpleNamespace(spec_decoding_stats=None), None)
    logger.record(SimpleNamespace(**{STEP_FIELD: StepStats(0, 2, 0.01)}), None)
    assert isinstance(logger.ledger, Ledger) and logger.ledger.ks == []


def test_the_encoders_counts_are_sums_over_engines() -> None:
    """Each engine says what it did since it last did; what is held is what each holds now."""
    config = running(str(DEMO / "verifier"), None)
    one, two = ServeLogger(config, 0), ServeLogger(config, 1)
    for logger, counts in (
        (one, EncoderCounts(1, 2, 30, 60, 900, 4)),
        (two, EncoderCounts(0, 1, 0, 9, 90, 2)),
        (one, EncoderCounts(4, 0, 120, 0, 800, 1)),
    ):
        logger.record(SimpleNamespace(encoder_counts=counts), None)
    assert one.ledger.encoder.to_json() == {
        "hits": 5,
        "misses": 3,
        "tokens_saved": 150,
        "tokens_encoded": 69,
        "bytes_held": 890,
    }
    assert one.ledger.encoder.requests == 3
