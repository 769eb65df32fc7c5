"""Greedy picking in one launch, and that a draft of a reduced vocabulary keeps its own head."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plugin.drafts.backbone import DraftModel
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.drafts.pick_cases import CASES, is_right


@pytest.fixture(scope="module")
def interpreted() -> dict[str, bool]:
    found: dict[str, bool] = interpreted_errors("tests.plugin.drafts.pick_cases")
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_program_picks_the_first_of_the_largest(interpreted: dict[str, bool], name: str) -> None:
    assert interpreted[name]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_gpu_the_program_picks_the_first_of_the_largest(name: str, dtype: torch.dtype) -> None:
    assert is_right(name, "cuda", dtype)


def test_on_the_cpu_the_model_picks_with_pytorch() -> None:
    d2t = torch.tensor([10, 20, 30])
    draft: Any = SimpleNamespace(draft_id_to_target_id=d2t)
    draft.map_draft_to_target = lambda ids: DraftModel.map_draft_to_target(draft, ids)
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    assert DraftModel.pick(draft, logits).tolist() == [21, 10]
    assert DraftModel.pick(draft, logits, torch.tensor([0.0, 0.0, 5.0])).tolist() == [32, 32]


@pytest.mark.parametrize(("reduced", "own"), [(True, True), (False, False)])
def test_a_reduced_vocabulary_means_a_head_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reduced: bool, own: bool
) -> None:
    def stock(self: Any, *, vllm_config: Any, prefix: str) -> None:
        torch.nn.Module.__init__(self)
        self.draft_model_config = SimpleNamespace(model=str(tmp_path))
        self.draft_id_to_target_id = torch.zeros(2) if reduced else None

    monkeypatch.setattr(DraftModel.__bases__[0], "__init__", stock)
    assert DraftModel(vllm_config=None).has_own_lm_head is own
