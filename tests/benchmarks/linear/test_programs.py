"""What is on trial in the programs: the same products, and only where it was asked for."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from benchmarks.linear import programs
from plugin.projection import triton_linear
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.projection.few_tokens_cases import TOLERANCE


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    found: dict[str, Any] = interpreted_errors("tests.benchmarks.linear.program_cases")
    return found


@pytest.mark.parametrize("name", [*programs.CHANGES, "ways"])
def test_a_changed_program_equals_the_product(interpreted: dict[str, Any], name: str) -> None:
    assert interpreted[name]
    assert max(interpreted[name].values()) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("name", programs.CHANGES)
def test_a_change_changes_the_text(name: str) -> None:
    text = inspect.getsource(triton_linear)
    assert programs.changed(text, [name]) != text


@pytest.mark.parametrize(("owner", "kernel"), programs.OTHERS)
def test_other_programs_let_the_next_launch_in_before_they_wait(owner: Any, kernel: str) -> None:
    text = inspect.getsource(owner)
    early = programs.changed(text, ["dependents first"])
    assert programs.WAIT + programs.LET_IN in text
    assert programs.WAIT + programs.LET_IN not in early
    assert early.count(programs.LET_IN + programs.WAIT) == text.count(programs.WAIT + programs.LET_IN)
    assert f"def {kernel}(" in early


def test_a_change_whose_place_is_gone_is_refused() -> None:
    with pytest.raises(ValueError, match="weights left: no 'b_out"):
        programs.changed("nothing of it", ["weights left"])
