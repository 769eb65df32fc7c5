"""The training benchmark's arithmetic, on a verifier small enough for a CPU."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from benchmarks import training
from benchmarks.training import Throughput, counted, measure, samples
from plugin.training.settings import DraftSettings
from tests.plugin.training.conftest import small_config


def settings(rows: int) -> DraftSettings:
    return DraftSettings(
        rows=rows, total_length=32, response_length=16, max_anchors=8, extractor_batch=8, precision="float32"
    )


def throughput(rows: int) -> Throughput:
    torch.manual_seed(0)
    model = T5Gemma2ForConditionalGeneration(small_config()).eval()
    return measure(model, "dflare", settings(rows), 12, 15, steps=1, draft_vocab_size=40)


def test_operations_grow_with_the_rows() -> None:
    """Twice the rows are twice the operations, of which the verifier's pass is a part."""
    one, two = throughput(1), throughput(2)
    assert two.step_flop == 2 * one.step_flop and two.extraction_flop == 2 * one.extraction_flop
    # Each weight matrix of the draft multiplies every slot once forward and twice backward, so the draft's share is
    # larger than a forward pass alone.
    assert one.step_flop > one.extraction_flop > 0
    assert one.tokens_per_second > 0 and 0 < one.utilisation < 10


def test_operations_are_those_of_the_products() -> None:
    left, right = torch.zeros(8, 16), torch.zeros(16, 4)
    assert counted(lambda: left @ right) == 2 * 8 * 16 * 4


def test_rows_are_full() -> None:
    groups = samples(settings(3), 64, 12, 15)
    assert [len(group) for group in groups] == [2, 2, 2]
    assert all(len(sample.prompt) == 12 and len(sample.response) == 15 for sample in groups[0])
    with pytest.raises(ValueError, match="response: 40 tokens do not fit"):
        samples(settings(1), 64, 12, 40)


def test_utilisation() -> None:
    found = Throughput(1000.0, 4.0, 0.5, 0.1, 4_000, 1_000, 16_000.0)
    assert found.figures("dflare") == {
        "training_dflare_tokens_per_second": 1000.0,
        "training_dflare_samples_per_second": 4.0,
        "training_dflare_flop_utilisation": 0.5,
        "training_dflare_extraction_share": 0.2,
    }


def test_the_published_shapes_need_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["x"])
    with pytest.raises(SystemExit, match="no CUDA device"):
        training.main()
