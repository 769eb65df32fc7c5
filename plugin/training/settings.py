"""How a draft is trained: every number that decides what the weights become, checked where it is made.

The flags of `t5gemma2 train <family>` come from here; this imports no torch, so that help needs none.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, get_args

from plugin.drafts.families import FAMILIES, Family, LossName

Precision = Literal["bfloat16", "float32"]
Schedule = Literal["linear", "cosine", "none"]
LOSSES: Final[tuple[LossName, ...]] = get_args(LossName)
_ALIASES: Final[dict[str, Any]] = {"kl_div": "kl"}
Number = TypeVar("Number", int, float)


def number(default: Number, text: str, flag: str | None = None) -> Number:
    """A field with a flag, by default of its name; `text` is its help."""
    value: Number = field(default=default, metadata={"help": text, "flag": flag, "kind": type(default)})
    return value


def optional(text: str) -> int | None:
    """A whole number from 1 with a flag of its name, None without it; `text` is its help."""
    value: int | None = field(default=None, metadata={"help": text, "flag": None, "kind": int})
    return value


@dataclass(frozen=True, slots=True)
class LossSettings:
    """`gamma` is the slot decay, `terms` are distances and their weights, none for the family's own.

    `confidence` is the weight of DSpark's confidence loss. Raises `ValueError` naming what makes no sense.
    """

    gamma: float = number(4.0, "slots of the weights' decay")
    terms: tuple[tuple[LossName, float], ...] = ()
    confidence: float = number(1.0, "of the confidence head's loss", "--confidence-weight")

    def __post_init__(self) -> None:
        if not 0 < self.gamma < math.inf:
            raise ValueError(f"gamma: {self.gamma} is not a finite number above 0")
        if not 0 <= self.confidence < math.inf:
            raise ValueError(f"confidence: {self.confidence} is not a finite number from 0")
        for name, weight in self.terms:
            if name not in LOSSES:
                raise ValueError(f"loss: {name!r} is not one of {', '.join(LOSSES)}")
            if not 0 <= weight < math.inf:
                raise ValueError(f"loss: the weight of {name} is {weight}, not a finite number from 0")

    def of(self, family: Family) -> dict[LossName, float]:
        """The terms of a draft of `family`, and their weights."""
        return dict(self.terms or FAMILIES[family].loss.items())


def loss_terms(text: str) -> tuple[tuple[LossName, float], ...]:
    """The terms that `text` names: `kl`, or a JSON object of weights such as `{"ce": 0.1, "tv": 0.9}`.

    `kl_div`, as the package `speculators` calls it, is `kl`. Raises `ValueError`.
    """
    text = text.strip()
    found = json.loads(text) if text.startswith("{") else {text: 1.0}
    if not found or not all(type(weight) in (int, float) for weight in found.values()):
        raise ValueError(f"loss: {text} is no object of names and weights")
    terms = tuple((_ALIASES.get(name, name), float(weight)) for name, weight in found.items())
    LossSettings(terms=terms)
    return terms


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """The defaults are the published recipe, but for `whole_blocks`.

    An optimizer step sees `rows` * `accumulate` packed rows, of every process. The end token counts in
    `response_length`, `noise` is the half-width of the uniform noise. `whole_blocks` keeps anchors away from a
    response's last block, as the published drafts were trained; a draft then never learns how a response ends.
    `short_blocks` is the share of blocks that are drawn shorter, as vLLM's own drafting makes them below K.
    `warmup_steps` takes the place of `warmup`. `precision` is what the draft computes in; its master weights are
    float32 always.

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
    schedule: Schedule = "linear"
    warmup: float = number(0.01, "fraction of all steps")
    warmup_steps: int | None = optional("steps of the warm-up, instead of --warmup")
    max_steps: int | None = optional("end after so many steps; the schedule ends there, too")
    weight_decay: float = number(0.01, "of AdamW")
    clip: float = number(1.0, "largest gradient norm")
    noise: float = number(0.05, "on the aux states")
    whole_blocks: bool = False
    short_blocks: float = number(
        0.0, "share of blocks that are drawn shorter, for servers that shorten them to K"
    )
    train_fraction: float = number(0.9, "of the samples; the others validate")
    seed: int = number(42, "of data, weights and draws")
    precision: Precision = "bfloat16"
    gradient_checkpointing: bool = False
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
        for name in ("warmup_steps", "max_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}: {value} is below 1")
        if not 0 <= self.short_blocks <= 1:
            raise ValueError(f"short_blocks: {self.short_blocks} is not a share from 0 to 1")
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule: {self.schedule!r} is not one of {', '.join(get_args(Schedule))}")
        if not 0 < self.train_fraction <= 1:
            raise ValueError(f"train_fraction: {self.train_fraction} is not above 0 and at most 1")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision: {self.precision!r} is not one of {', '.join(get_args(Precision))}")

    @property
    def step_rows(self) -> int:
        """Packed rows of one optimizer step, of one process."""
        return self.rows * self.accumulate
