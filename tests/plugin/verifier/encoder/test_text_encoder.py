"""The encoder's projections of few tokens are our program's, as the decoder's are; all others stay with PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.verifier.encoder.text_encoder_cases import LAYERS, LENGTHS, MOST

TOLERANCE = 5e-3
"""Of float16, through two layers."""


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    found: dict[str, Any] = interpreted_errors("tests.plugin.verifier.encoder.text_encoder_cases")
    return found


@pytest.mark.parametrize("name", LENGTHS)
def test_few_tokens_go_through_our_program(interpreted: dict[str, Any], name: str) -> None:
    """To queries, keys and values, back from what was attended, gate and up, down: four launches a layer."""
    facts = interpreted[name]
    assert facts["launches without"] == 0
    if sum(LENGTHS[name]) > MOST:
        assert facts["launches"] == facts["error"] == 0
    else:
        assert facts["launches"] == 4 * len(LAYERS)
        assert 0 < facts["error"] < TOLERANCE


@pytest.mark.parametrize("name", LENGTHS)
def test_control_a_wrong_projection_is_seen(interpreted: dict[str, Any], name: str) -> None:
    assert interpreted[name]["control"] > 10 * TOLERANCE
