"""How the demo's verifier is trained: a step, a whole training, and the rates."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.data.pairs import Pair
from plugin.training.data.samples import Sample, collate, encode
from plugin.training.demo.tiny_verifier import VerifierSettings, take_step, tiny_config, train_verifier
from plugin.training.run.schedule import learning_rate


def test_a_step_moves_down_and_reports_the_loss_before() -> None:
    torch.manual_seed(0)
    model = T5Gemma2ForConditionalGeneration(tiny_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, betas=(0.9, 0.98))
    prompts = torch.randint(8, 700, (4, 9)).tolist()
    batch = collate([Sample(prompt, prompt[1:]) for prompt in prompts], 0, 2)
    losses = [float(take_step(model, optimizer, batch, clip=1.0)) for _ in range(6)]
    assert losses[-1] < losses[0] - 0.1
    optimizer.param_groups[0]["lr"] = 0.0
    again = [float(take_step(model, optimizer, batch, clip=1.0)) for _ in range(2)]
    assert abs(again[0] - again[1]) < 1e-5


def test_padding_has_no_loss() -> None:
    """The loss of two samples in one batch is the mean over their tokens, taken one by one."""
    torch.manual_seed(0)
    model = T5Gemma2ForConditionalGeneration(tiny_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    samples = [Sample([2, 8, 9, 10], [11, 12, 13, 14, 1]), Sample([2, 8], [15, 1])]
    alone = [float(take_step(model, optimizer, collate([sample], 0, 2), clip=1.0)) for sample in samples]
    together = float(take_step(model, optimizer, collate(samples, 0, 2), clip=1.0))
    assert abs(together - (5 * alone[0] + 2 * alone[1]) / 7) < 1e-4


class _Letters:
    """Maps each letter to an id, as a tokenizer is called."""

    def __call__(
        self,
        texts: list[str],
        max_length: int,
        truncation: bool,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
    ) -> SimpleNamespace:
        assert truncation
        ids = [[2] * add_special_tokens + [ord(letter) for letter in text] for text in texts]
        cut = [SimpleNamespace(overflowing=row[max_length:]) for row in ids]
        return SimpleNamespace(input_ids=[row[:max_length] for row in ids], encodings=cut)


def _samples(*texts: tuple[str, str]) -> list[Sample]:
    return encode(_Letters(), [Pair(*pair) for pair in texts], end_id=1)


def test_training_is_reproducible_and_the_table_fits_bfloat16() -> None:
    samples = _samples(("ab", "cd"), ("b", "d"), ("ba", "dc"), ("a", "c"))
    settings = VerifierSettings(steps=4, batch_size=2, seed=3)
    (first, loss), (second, again) = (
        train_verifier(samples, settings, torch.device("cpu")) for _ in range(2)
    )
    assert loss == again
    table = first.get_input_embeddings().weight
    assert torch.equal(table, second.get_input_embeddings().weight)
    assert torch.equal(table, table.bfloat16().float())


def test_learning_rate_rises_then_falls() -> None:
    linear = [learning_rate(step, 10, 1.0, 0.2, "linear") for step in range(10)]
    assert linear[:3] == [0.5, 1.0, 1.0] and linear[-1] == 0.125
    cosine = [learning_rate(step, 100, 2.0, 0.0, "cosine") for step in range(100)]
    assert cosine[0] == 2.0 and sorted(cosine, reverse=True) == cosine and 0 < cosine[-1] < 0.01


def test_encode_closes_responses_and_collates() -> None:
    batch = collate(_samples(("a", "b")), 0, 2)
    assert batch.prompts.tolist() == [[2, 97]] and batch.tokens.tolist() == [[2, 98, 1]]
    assert _samples() == []
