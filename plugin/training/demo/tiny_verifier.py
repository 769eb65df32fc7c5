"""The demo's verifier: a real T5Gemma 2 of two million parameters, and how it learns the word problems."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import T5Gemma2Config, T5Gemma2ForConditionalGeneration

from plugin.training.data.samples import IGNORED_LABEL, Sample, collate, length_batches
from plugin.training.demo import tokenizer as vocabulary
from plugin.training.run.schedule import learning_rate
from plugin.training.verifier.step import Inputs, VerifierStep, captured

logger = logging.getLogger(__name__)

MAX_POSITIONS = 1024
SLIDING_WINDOW = 16


def tiny_config() -> T5Gemma2Config:
    """Six layers each side in the pattern sliding, sliding, full; the smallest vision tower the class allows."""
    layers = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    text: dict[str, Any] = {
        "vocab_size": vocabulary.VOCABULARY_SIZE,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": len(layers),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "max_position_embeddings": MAX_POSITIONS,
        "sliding_window": SLIDING_WINDOW,
        "layer_types": layers,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "pad_token_id": vocabulary.PAD_ID,
        "eos_token_id": vocabulary.EOS_ID,
        "bos_token_id": vocabulary.BOS_ID,
        "initializer_range": 0.04,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 16,
        "patch_size": 16,
        "vision_use_head": False,
    }
    return T5Gemma2Config(
        encoder={
            "text_config": dict(text),
            "vision_config": vision,
            "mm_tokens_per_image": 1,
            "boi_token_index": vocabulary.START_OF_IMAGE_ID,
            "eoi_token_index": vocabulary.END_OF_IMAGE_ID,
            "image_token_index": vocabulary.IMAGE_ID,
        },
        decoder=dict(text),
        image_token_index=vocabulary.IMAGE_ID,
        eoi_token_index=vocabulary.END_OF_IMAGE_ID,
        initializer_range=0.04,
    )


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """How the verifier is trained."""

    steps: int = 8000
    batch_size: int = 512
    peak_rate: float = 2e-3
    warmup: float = 0.02
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0


def train_verifier(
    samples: Sequence[Sample], settings: VerifierSettings, device: torch.device
) -> tuple[T5Gemma2ForConditionalGeneration, float]:
    """A trained verifier on `device` and its mean loss (nats a token) over the last hundred steps.

    From the last tenth of the steps on the embedding table is kept at values that bfloat16 can hold, so that a draft
    stored in bfloat16 carries the very same table as the float32 verifier.
    """
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    model = T5Gemma2ForConditionalGeneration(tiny_config()).to(device).train()
    step = VerifierStep(model, settings.weight_decay, settings.clip, capturable=device.type == "cuda")
    everything = collate(samples, vocabulary.PAD_ID, vocabulary.BOS_ID).to(device)
    labels = everything.labels()
    table = model.get_input_embeddings().weight
    take_step: Callable[[Inputs], torch.Tensor] = step
    recent: list[torch.Tensor] = []
    started = time.perf_counter()
    rows = _rows(samples, settings)
    for number in range(settings.steps):
        chosen = torch.tensor(next(rows), device=device)
        inputs = (
            everything.prompts[chosen],
            everything.prompt_mask[chosen],
            everything.tokens[chosen],
            labels[chosen],
        )
        if device.type == "cpu":
            inputs = _trimmed(*inputs)
        elif number == 0:
            take_step = captured(step, inputs)
        step.set_rate(learning_rate(number, settings.steps, settings.peak_rate, settings.warmup, "cosine"))
        recent = [*recent[-99:], take_step(inputs)]
        if number >= min(settings.steps * 0.9, settings.steps - 1):
            with torch.no_grad():
                table.copy_(table.bfloat16())
        if number % 200 == 0 or number + 1 == settings.steps:
            seconds = time.perf_counter() - started
            logger.info(
                "verifier step %d/%d loss %.4f, %.0f s",
                number + 1,
                settings.steps,
                recent[-1].item(),
                seconds,
            )
    torch.set_float32_matmul_precision("highest")
    final = float(torch.stack(recent).mean())
    if not final < float("inf"):
        raise FloatingPointError(f"verifier: the loss is {final} after {settings.steps} steps")
    return model.eval(), final


def _rows(samples: Sequence[Sample], settings: VerifierSettings) -> Iterator[list[int]]:
    size = min(settings.batch_size, len(samples))
    for epoch in itertools.count():
        yield from (rows for rows in length_batches(samples, size, settings.seed, epoch) if len(rows) == size)


def _trimmed(prompts: torch.Tensor, mask: torch.Tensor, tokens: torch.Tensor, labels: torch.Tensor) -> Inputs:
    """The batch without the columns that are padding in every row."""
    width = int(mask.sum(dim=1).max())
    length = int((labels != IGNORED_LABEL).sum(dim=1).max())
    return prompts[:, :width], mask[:, :width], tokens[:, :length], labels[:, :length]
