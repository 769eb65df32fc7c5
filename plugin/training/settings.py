"""How a draft is trained: every number that decides what the weights become, checked where it is made.

The flags of `t5gemma2 train <family>` come from here; this imports no torch, so that help needs none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

Precision = Literal["bfloat16", "float32"]
Number = TypeVar("Number", int, float)


def number(default: Number, text: str, flag: str | None = None) -> Number:
    """A field with a flag, by default of its name; `text` is its help."""
    value: Number = field(default=default, metadata={"help": text, "flag": flag})
    return value


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Weights of the terms. `gamma` is the slot decay; the last three concern DSpark."""

    gamma: float = number(4.0, "slots of the weights' decay")
    cross_entropy: float = 0.1
    total_variation: float = 0.9
    confidence: float = 1.0


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """The defaults are the published recipe, but for `whole_blocks`.

    An optimizer step sees `rows` * `accumulate` packed rows. The end token counts in `response_length`, `noise` is the
    half-width of the uniform noise. `whole_blocks` keeps anchors away from a response's last block, as the published
    drafts were trained; a draft then never learns how a response ends. `precision` is what the draft computes in; its
    master weights are float32 always.

    Raises `ValueError` naming the field that makes no sense.
    """

    epochs: int = number(6, "over the training samples")
    rows: int = number(1, "packed rows a micro-batch")
    accumulate: int = number(1, "micro-batches a step")
    total_length: int = number(2048, "decoder tokens a packed row")
    prompt_length: int = number(2048, "encoder cut, tokens")
    response_length: int = number(1024, "decoder cut, tokens")
    max_anchors: int = number(256, "most blocks a packed row", "--anchors")
    extractor_batch: int = number(4, "samples that the verifier reads at a time")
    peak_rate: float = number(6e-4, "peak learning rate", "--rate")
    warmup: float = number(0.01, "fraction of all steps")
    weight_decay: float = number(0.01, "of AdamW")
    clip: float = number(1.0, "largest gradient norm")
    noise: float = number(0.05, "on the aux states")
    whole_blocks: bool = False
    train_fraction: float = number(0.9, "of the samples; the others validate")
    seed: int = number(42, "of data, weights and draws")
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
