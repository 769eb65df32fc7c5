"""The learning rate, a function of the step alone."""

from __future__ import annotations

import math

from plugin.training.settings import Schedule


def learning_rate(
    step: int, steps: int, peak: float, warmup: float, shape: Schedule, warmup_steps: int | None = None
) -> float:
    """The rate for 0-based `step` of `steps`: linear warm-up, then down to 0 by `shape`, or not at all by "none".

    The warm-up takes `warmup_steps`, without which the fraction `warmup` of all steps.
    """
    rising = max(1, round(steps * warmup)) if warmup_steps is None else warmup_steps
    if step < rising:
        return peak * (step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    shares = {"linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done)), "none": 1.0}
    return peak * shares[shape]
