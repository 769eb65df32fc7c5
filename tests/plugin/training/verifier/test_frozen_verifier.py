"""The verifier's fingerprint: of its text weights, whatever their precision."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.verifier.frozen_verifier import FrozenVerifier


def _fingerprint(model: T5Gemma2ForConditionalGeneration) -> str:
    return FrozenVerifier(model, None, 1).fingerprint()


def test_the_same_weights_in_another_precision_are_the_same_verifier(
    verifier: T5Gemma2ForConditionalGeneration,
) -> None:
    half = copy.deepcopy(verifier).bfloat16()
    assert _fingerprint(half) == _fingerprint(copy.deepcopy(half).float())


@pytest.mark.parametrize(
    ("part", "same"),
    [
        ("decoder.layers.3.mlp.up_proj.weight", False),
        ("encoder.text_model.layers.0.self_attn.q_proj.weight", False),
        ("embed_tokens.weight", False),
        ("vision", True),
    ],
)
def test_a_fine_tuned_verifier_is_another_one(
    verifier: T5Gemma2ForConditionalGeneration, part: str, same: bool
) -> None:
    tuned = copy.deepcopy(verifier)
    changed = [parameter for name, parameter in tuned.named_parameters() if part in name]
    assert changed
    for parameter in changed:
        with torch.no_grad():
            parameter.mul_(1.01).add_(0.01)
    assert (_fingerprint(tuned) == _fingerprint(verifier)) == same
