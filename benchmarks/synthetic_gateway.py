"""`uvicorn benchmarks.synthetic_gateway:main`: the gateway, with vLLM's synthetic acceptance instead of the draft's.

Of a draft with random weights nothing is accepted. With this a benchmark can ask what a server at full size makes of a
draft that is as good as the variable SYNTHETIC_ACCEPTANCE_LENGTH says, tokens a step at the largest K; what is accepted
no longer depends on the logits, so that answers are not the verifier's.
"""

from __future__ import annotations

import os
from typing import Any

from app import vllm_engine
from app.engine import EnginePlan
from plugin.drafts.checkpoint import Checkpoints

_stock = vllm_engine.engine_arguments  # type: ignore[attr-defined]  # what `start` calls


def _engine_arguments(plan: EnginePlan, checkpoints: Checkpoints, on_cpu: bool) -> dict[str, Any]:
    arguments = _stock(plan, checkpoints, on_cpu)
    arguments["speculative_config"] |= {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": float(os.environ["SYNTHETIC_ACCEPTANCE_LENGTH"]),
    }
    return arguments


vllm_engine.engine_arguments = _engine_arguments  # type: ignore[attr-defined]

from app import main  # noqa: E402  (made by its first use, with the arguments above)

__all__ = ["main"]
