"""The gateway whose draft's acceptance is made up."""

from __future__ import annotations

import sys

import pytest

from app import vllm_engine
from app.engine import EnginePlan
from plugin.drafts.checkpoint import DEMO, resolve
from tests.app.conftest import build
from tests.app.fake_engine import FakeEngine


def test_engine_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM is started with is the gateway's, and synthetic acceptance."""
    monkeypatch.setenv("SYNTHETIC_ACCEPTANCE_LENGTH", "4.5")
    monkeypatch.setattr(vllm_engine, "engine_arguments", stock := vllm_engine.engine_arguments)
    monkeypatch.delitem(sys.modules, "benchmarks.synthetic_gateway", raising=False)
    from benchmarks import synthetic_gateway

    gateway = build(FakeEngine()).state.gateway
    plan = EnginePlan(gateway.settings, gateway.identity, gateway.drafting, gateway.progress)
    checkpoints = resolve(None, str(DEMO / "dflash"), None, None, None)
    wanted = stock(plan, checkpoints, True)
    wanted["speculative_config"] |= {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 4.5,
    }
    assert synthetic_gateway._engine_arguments(plan, checkpoints, True) == wanted
    assert vllm_engine.engine_arguments is synthetic_gateway._engine_arguments
