"""The learning rate, a function of the step alone."""

from __future__ import annotations

import math
from typing import Literal

Shape = Literal["linear", "cosine"]


def learning_rate(step: int, steps: int, peak: float, warmup: float, shape: Shape) -> float:
    """The rate for 0-based `step` of `steps`: linear warm-up over the fraction `warmup`, then down to 0 by `shape`."""
    rising = max(1, round(steps * warmup))
    if step < rising:
        return peak * (step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    return peak * (1 - done if shape == "linear" else 0.5 * (1 + math.cos(math.pi * done)))
