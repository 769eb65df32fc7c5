"""How a draft is trained: every number that decides what the weights become, checked where it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from plugin.training.draft.losses import LossSettings

Precision = Literal["bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """The defaults are the published recipe, but for `whole_blocks`.

    Lengths are in tokens. An optimizer step sees `rows` * `accumulate` packed rows of at most `total_length` decoder
    tokens, with at most `max_anchors` blocks in each; the verifier reads `extractor_batch` samples at a time.
    `prompt_length` and `response_length` are where samples are cut (the end token counts). `noise` is the half-width
    of the uniform noise on the aux states. `whole_blocks` keeps anchors away from a response's last block, as the
    published drafts were trained; a draft then never learns how a response ends. `precision` is what the draft
    computes in; its master weights are float32 always.

    Raises `ValueError` naming the field that makes no sense.
    """

    epochs: int = 6
    rows: int = 1
    accumulate: int = 1
    total_length: int = 2048
    prompt_length: int = 2048
    response_length: int = 1024
    max_anchors: int = 256
    extractor_batch: int = 4
    peak_rate: float = 6e-4
    warmup: float = 0.01
    weight_decay: float = 0.01
    clip: float = 1.0
    noise: float = 0.05
    whole_blocks: bool = False
    train_fraction: float = 0.9
    seed: int = 42
    precision: Precision = "bfloat16"
    loss: LossSettings = field(default_factory=LossSettings)

    def __post_init__(self) -> None:
        for name in ("epochs", "rows", "accumulate", "max_anchors", "extractor_batch", "prompt_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is below 1")
        if self.response_length < 2:
            raise ValueError(f"response_length: {self.response_length} leaves no anchor with a successor")
        if self.total_length <= self.response_length:
            raise ValueError(
                f"total_length: {self.total_length} does not hold a start token and a response of response_length "
                f"{self.response_length}"
            )
        for name in ("peak_rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not a finite number above 0")
        if self.seed < 0:
            raise ValueError(f"seed: {self.seed} is below 0")
        for name in ("weight_decay", "noise"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not a finite number from 0")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup: {self.warmup} is not a fraction from 0 and below 1")
        if not 0 < self.train_fraction <= 1:
            raise ValueError(f"train_fraction: {self.train_fraction} is not above 0 and at most 1")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision: {self.precision!r} is not one of {', '.join(get_args(Precision))}")
        if not 0 < self.loss.gamma < math.inf:
            raise ValueError(f"gamma: {self.loss.gamma} is not a finite number above 0")

    @property
    def step_rows(self) -> int:
        """Packed rows of one optimizer step."""
        return self.rows * self.accumulate
