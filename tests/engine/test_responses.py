"""The verifier's answers by vLLM, in the process that `--responses verifier` starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, T5Gemma2ForConditionalGeneration

from plugin.training.data.pairs import DataError
from plugin.training.data.problems.generate import take
from plugin.training.data.responses.engine import EngineAnswers
from plugin.training.verifier.greedy import greedy_responses, greedy_share

DEMO = Path(__file__).parents[2] / "plugin" / "demo" / "verifier"

pytestmark = pytest.mark.engine


def test_answers_are_the_verifiers_own(tmp_path: Path) -> None:
    """More prompts than a batch holds, in whatever order they end: each gets what transformers makes of it (N36)."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    prompts = tokenizer([problem.question for problem in take(7, "fresh", 11)]).input_ids
    model = T5Gemma2ForConditionalGeneration.from_pretrained(DEMO, dtype=torch.float32).eval()
    wanted = greedy_responses(model, prompts, 48, 16)
    engine = EngineAnswers(str(DEMO), 256, tmp_path / "engine.log", on_cpu=True, at_once=4)
    got = dict(engine(prompts, 48))
    assert [got[number] for number in range(len(prompts))] == wanted
    assert min(greedy_share(model, *pair) for pair in zip(prompts, wanted, strict=True)) == 1.0
    assert greedy_share(model, prompts[0], wanted[1]) < 0.95


def test_an_engine_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    engine = EngineAnswers(str(tmp_path / "nowhere"), 64, tmp_path / "engine.log", on_cpu=True)
    with pytest.raises(DataError, match=r"vLLM ended with 1 before the last response: .*nowhere"):
        list(engine([[2, 5]], 8))
