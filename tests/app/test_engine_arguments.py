"""vLLM's arguments, without vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from app.config.settings import Settings, SettingsError
from app.drafts.identity import Identity
from app.drafts.ledger import Ledger
from app.engine import EnginePlan
from app.engine_arguments import check_adaptive_verification, dtype, engine_arguments
from plugin.drafts.facts import Checkpoints
from tests.app.conftest import DRAFT, VERIFIER


def arguments(k: int | None = 7, on_cpu: bool = True, **settings: Any) -> dict[str, Any]:
    chosen = Settings(**settings)
    checkpoints = Checkpoints(VERIFIER, DRAFT if k else None, k)
    identity = Identity.of(checkpoints, chosen)
    plan = EnginePlan(chosen, identity, Ledger(60), lambda *_: None)
    return engine_arguments(plan, checkpoints, on_cpu)


def test_draft_tokens() -> None:
    """K reaches the engine, for every family by the same method (B27)."""
    given = arguments(3)["speculative_config"]
    assert given["num_speculative_tokens"] == 3
    assert (given["method"], given["model"]) == ("dflash", "demo")
    assert "speculative_config" not in arguments(None)
    assert "per_request_spec_decode_metrics" not in arguments(None)


def test_adaptive_verification() -> None:
    """It reaches the engine, and is refused in one line where it cannot work."""
    given = arguments(3, on_cpu=False, adaptive_verification=True)["speculative_config"]
    assert given["enable_adaptive_verification"] is True
    assert "enable_adaptive_verification" not in arguments(3)["speculative_config"]
    drafted, alone = Checkpoints(VERIFIER, DRAFT, 7), Checkpoints(VERIFIER, None, None)
    asked, eager = (
        Settings(adaptive_verification=True),
        Settings(adaptive_verification=True, enforce_eager=True),
    )
    check_adaptive_verification(asked, drafted, on_cpu=False)
    check_adaptive_verification(Settings(), alone, on_cpu=True)
    for settings, checkpoints, on_cpu, why in (
        (asked, alone, False, "needs a draft"),
        (asked, drafted, True, "needs CUDA: "),
        (eager, drafted, False, "needs CUDA graphs, which T5GEMMA_ENFORCE_EAGER=true"),
    ):
        with pytest.raises(SettingsError, match=f"^T5GEMMA_ADAPTIVE_VERIFICATION=true {why}"):
            check_adaptive_verification(settings, checkpoints, on_cpu)


def test_budgets() -> None:
    """One engine step holds a whole prompt; the encoder's own limit goes where the plugin looks for it."""
    given = arguments(max_encoder_len=400, max_model_len=100)
    assert given["max_model_len"] == 100 and given["hf_overrides"] == {"max_source_positions": 400}
    assert given["max_num_batched_tokens"] >= 400
    # A full batch that verifies 1 + 7 tokens a request and drafts 7 more, as vLLM's scheduler charges it.
    assert arguments(max_num_seqs=2048)["max_num_batched_tokens"] >= 2048 * 15
    assert arguments(max_model_len=64, max_num_batched_tokens=77)["max_num_batched_tokens"] == 77
    assert given["enable_prefix_caching"] is False and given["enable_log_requests"] is False


@pytest.mark.parametrize(
    ("asked", "stored", "on_cpu", "used"),
    [
        ("auto", "float32", True, "float32"),
        ("auto", "bfloat16", True, "bfloat16"),
        ("auto", "float32", False, "bfloat16"),
        ("float32", "bfloat16", False, "float32"),
    ],
)
def test_dtype(asked: str, stored: str, on_cpu: bool, used: str) -> None:
    assert dtype(asked, stored, on_cpu) == used


def test_eager() -> None:
    assert arguments()["enforce_eager"] is True
    assert arguments(on_cpu=False)["enforce_eager"] is False
    assert arguments(enforce_eager=False)["enforce_eager"] is False
