"""The server's own estimate of what its draft is worth, and the baseline that it may be given beforehand."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.bench.arms import Arm
from app.bench.client import Sampling, Target, optional_json
from app.bench.errors import BenchError
from app.bench.load import Load, run, warmups
from app.drafts import baseline

log = logging.getLogger("app.bench")


async def estimate(target: Target) -> dict[str, Any] | None:
    """The live speed-up with its range and origin, and the recommended K; None where the server tells none."""
    told = (await optional_json(target.client, "/drafts/stats")).get("estimate")
    if not isinstance(told, dict):
        return None
    return {
        "speedup": told["speedup"],
        "speedup_reason": told["speedup_reason"],
        "recommended_k": told["recommended_k"],
        "recommended_reason": told["recommended_reason"],
    }


def measured_arms(arms: Sequence[Arm]) -> list[Arm]:
    """The arms whose servers a baseline is measured on: one for each draft, with its whole block."""
    found = {
        dict(arm.settings)["DRAFT"]: arm
        for arm in reversed(arms)
        if arm.url is None and arm.family is not None and not dict(arm.settings).get("SHORT_BLOCK")
    }
    return [arm for arm in arms if arm in found.values()]


async def store_baseline(
    target: Target,
    prompts: Sequence[str],
    sampling: Sampling,
    concurrency: Sequence[int],
    warmup: int,
    folder: Path,
) -> Path:
    """Serves the prompts at K = 0, at each concurrency in turn, and keeps how long the engine's steps lasted.

    Raises:
        BenchError: the server would not, or tells no durations.
    """
    answer = await target.client.post("/drafts/k", json={"k": 0})
    if not answer.is_success:
        raise BenchError(f"{target.client.base_url}/drafts/k: {answer.status_code}: {answer.text[:300]}")
    for at_once in concurrency:
        load = Load(at_once, warmups(warmup, at_once))
        await run(load, target, prompts, sampling, lambda: None)
    told = await optional_json(target.client, "/drafts/stats")
    steps = [step for step in told["estimate"]["baselines"] if step["origin"] == "live"]
    key = (await optional_json(target.client, "/drafts")).get("baseline_key")
    if not steps or key is None:
        raise BenchError(f"{target.client.base_url}/drafts/stats: no step without a draft was timed")
    path = baseline.store(folder, key, steps)
    log.info("baseline for batches of %s: %s", ", ".join(str(step["batch"]) for step in steps), path)
    return path
