"""What transformers and vLLM would refuse late is refused by file; what they take is not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.config_check import check_config, check_generation_config
from plugin.drafts.checkpoint import CheckpointError
from tests.app.conftest import VERIFIER

ODD: list[dict[str, Any]] = [
    {"temperature": -1},
    {"temperature": "x"},
    {"top_k": -5},
    {"top_p": 5},
    {"min_p": 2},
    {"repetition_penalty": 0},
]


@pytest.mark.parametrize("values", ODD)
def test_defaults_that_no_request_could_have(values: dict[str, Any]) -> None:
    """Each request that leaves the field out would fail, naming a field that it did not have."""
    model = SimpleNamespace(get_diff_sampling_param=lambda: values)
    with pytest.raises(
        CheckpointError, match=r"^demo-verifier/generation_config.json: cannot be used: "
    ) as one:
        check_generation_config(model, VERIFIER)
    assert "\n" not in str(one.value)


def test_ordinary_defaults() -> None:
    values = {"temperature": 0.7, "top_k": 64, "top_p": 0.95, "max_tokens": 3}
    check_generation_config(SimpleNamespace(get_diff_sampling_param=lambda: values), VERIFIER)
    check_generation_config(SimpleNamespace(get_diff_sampling_param=dict), VERIFIER)


def test_a_config_that_transformers_cannot_read(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5gemma2", "decoder": 5}')
    with pytest.raises(CheckpointError, match="transformers cannot read it"):
        check_config(replace(VERIFIER, path=str(tmp_path)))
