"""The verifier's own step: equal to transformers' forward, and it learns."""

from __future__ import annotations

import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.data.pairs import Pair
from plugin.training.data.samples import Sample, collate, encode
from plugin.training.demo.tiny_verifier import VerifierSettings, tiny_config, train_verifier
from plugin.training.run.schedule import learning_rate
from plugin.training.verifier.step import VerifierStep, verifier_logits


def test_logits_equal_transformers(verifier: T5Gemma2ForConditionalGeneration) -> None:
    torch.manual_seed(0)
    prompts, tokens = torch.randint(8, 60, (3, 17)), torch.randint(8, 60, (3, 23))
    mask = torch.arange(17) < torch.tensor([[17], [9], [1]])
    prompts[0, 3] = tokens[1, 5] = verifier.config.eoi_token_index  # has an embedding of its own
    wanted = verifier(
        input_ids=prompts, attention_mask=mask.long(), decoder_input_ids=tokens, use_cache=False
    ).logits
    assert (verifier_logits(verifier, prompts, mask, tokens) - wanted).abs().max() < 1e-5


def test_a_step_moves_down_and_reports_the_loss_before() -> None:
    torch.manual_seed(0)
    model = T5Gemma2ForConditionalGeneration(tiny_config())
    step = VerifierStep(model, weight_decay=0.0, clip=1.0, capturable=False)
    tokens = torch.randint(8, 700, (4, 9))
    inputs = tokens, torch.ones(4, 9, dtype=torch.bool), tokens, tokens.roll(-1, 1)
    step.set_rate(1e-3)
    losses = [float(step(inputs)) for _ in range(6)]
    assert losses[-1] < losses[0] - 0.1
    step.set_rate(0.0)
    assert abs(float(step(inputs)) - float(step(inputs))) < 1e-5


class _Letters:
    """Maps each letter to an id, as a tokenizer is called."""

    def __call__(
        self, texts: list[str], max_length: int, truncation: bool, add_special_tokens: bool = True
    ) -> _Letters:
        assert truncation
        ids = [[2] * add_special_tokens + [ord(letter) for letter in text] for text in texts]
        self.input_ids = [row[:max_length] for row in ids]
        return self


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
