"""The recipe: its defaults are the published numbers, and no other can be made that makes no sense."""

from __future__ import annotations

import math

import pytest
import torch

from plugin.training.seeds import seeded
from plugin.training.settings import DraftSettings, LossSettings, loss_terms


def test_defaults_are_the_published_recipe() -> None:
    recipe = DraftSettings()
    assert (recipe.epochs, recipe.peak_rate, recipe.warmup, recipe.seed) == (6, 6e-4, 0.01, 42)
    assert (recipe.weight_decay, recipe.clip, recipe.noise) == (0.01, 1.0, 0.05)
    assert (recipe.max_anchors, recipe.total_length, recipe.extractor_batch) == (256, 2048, 4)
    assert (recipe.prompt_length, recipe.response_length) == (2048, 1024)
    assert (recipe.train_fraction, recipe.precision, recipe.step_rows) == (0.9, "bfloat16", 1)
    assert (recipe.schedule, recipe.max_steps, recipe.short_blocks) == ("linear", None, 0.0)
    assert (recipe.loss.gamma, recipe.loss.confidence) == (4.0, 1.0)
    assert recipe.loss.of("dspark") == {"ce": 0.1, "tv": 0.9}
    assert recipe.loss.of("dflash") == recipe.loss.of("dflare") == {"kl": 1.0}


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
        ("warmup_steps", 0),
        ("max_steps", 0),
        ("schedule", "step"),
        ("short_blocks", 1.5),
        ("precision", "float16"),
    ],
)
def test_senseless_values_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        DraftSettings(**{field: value})  # type: ignore[arg-type]


def test_a_senseless_gamma_is_named() -> None:
    with pytest.raises(ValueError, match=r"^gamma: 0\.0"):
        DraftSettings(loss=LossSettings(gamma=0.0))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("kl", (("kl", 1.0),)),
        ("kl_div", (("kl", 1.0),)),
        ('{"ce": 0.1, "tv": 0.9}', (("ce", 0.1), ("tv", 0.9))),
        ('{"lk_hybrid": 2}', (("lk_hybrid", 2.0),)),
    ],
)
def test_a_loss_is_a_name_or_weights_by_name(text: str, terms: object) -> None:
    assert loss_terms(text) == terms


@pytest.mark.parametrize(
    "text", ["mse", "{}", '{"ce": "a"}', '{"ce": true}', '{"ce": -1}', '{"ce": NaN}', "{"]
)
def test_a_senseless_loss_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"loss: |Expecting"):
        loss_terms(text)


def test_draws_are_functions_of_their_place() -> None:
    draws = [
        torch.rand(4, generator=seeded(*place))
        for place in ((1, 2, "a"), (1, 2, "a"), (1, 3, "a"), (12, "a"))
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[3])
