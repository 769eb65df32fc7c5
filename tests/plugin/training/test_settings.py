"""The recipe: its defaults are the published numbers, and no other can be made that makes no sense."""

from __future__ import annotations

import math

import pytest
import torch

from plugin.training.seeds import seeded
from plugin.training.settings import DraftSettings, LossSettings


def test_defaults_are_the_published_recipe() -> None:
    recipe = DraftSettings()
    assert (recipe.epochs, recipe.peak_rate, recipe.warmup, recipe.seed) == (6, 6e-4, 0.01, 42)
    assert (recipe.weight_decay, recipe.clip, recipe.noise) == (0.01, 1.0, 0.05)
    assert (recipe.max_anchors, recipe.total_length, recipe.extractor_batch) == (256, 2048, 4)
    assert (recipe.prompt_length, recipe.response_length) == (2048, 1024)
    assert (recipe.train_fraction, recipe.precision, recipe.step_rows) == (0.9, "bfloat16", 1)
    assert recipe.loss == LossSettings(gamma=4.0, cross_entropy=0.1, total_variation=0.9, confidence=1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("rows", 0),
        ("accumulate", -1),
        ("max_anchors", 0),
        ("response_length", 1),
        ("total_length", 1024),
        ("peak_rate", 0.0),
        ("peak_rate", math.inf),
        ("clip", math.nan),
        ("noise", -0.1),
        ("weight_decay", math.nan),
        ("warmup", 1.0),
        ("seed", -1),
        ("train_fraction", 0.0),
        ("precision", "float16"),
    ],
)
def test_senseless_values_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        DraftSettings(**{field: value})  # type: ignore[arg-type]


def test_a_senseless_gamma_is_named() -> None:
    with pytest.raises(ValueError, match=r"^gamma: 0\.0"):
        DraftSettings(loss=LossSettings(gamma=0.0))


def test_draws_are_functions_of_their_place() -> None:
    draws = [
        torch.rand(4, generator=seeded(*place))
        for place in ((1, 2, "a"), (1, 2, "a"), (1, 3, "a"), (12, "a"))
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[3])
