"""The demo's verifier: a real T5Gemma 2 of two million parameters, and how it learns the word problems."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import T5Gemma2Config, T5Gemma2ForConditionalGeneration

from plugin.training.data.samples import Batch, Sample, collate, length_batches
from plugin.training.demo import tokenizer as vocabulary
from plugin.training.run.schedule import learning_rate
from plugin.training.verifier.forward import verifier_states

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
    samples: Sequence[Sample],
    settings: VerifierSettings,
    device: torch.device,
    start: T5Gemma2ForConditionalGeneration | None = None,
) -> tuple[T5Gemma2ForConditionalGeneration, float]:
    """A trained verifier on `device` and its mean loss (nats a token) over the last hundred steps.

    It is `start` or, without it, a fresh one. From the last tenth of the steps on the embedding table is kept at values
    that bfloat16 can hold, so that a draft stored in bfloat16 carries the very same table as the float32 verifier.
    Raises `FloatingPointError` when the loss is not finite.
    """
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    model = (start or T5Gemma2ForConditionalGeneration(tiny_config())).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), weight_decay=settings.weight_decay, betas=(0.9, 0.98), fused=True
    )
    table = model.get_input_embeddings().weight
    recent: deque[torch.Tensor] = deque(maxlen=100)
    started = time.perf_counter()
    for number, rows in zip(range(settings.steps), _batches(samples, settings), strict=False):
        batch = collate([samples[row] for row in rows], vocabulary.PAD_ID, vocabulary.BOS_ID).to(device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(number, settings.steps, settings.peak_rate, settings.warmup, "cosine")
        recent.append(take_step(model, optimizer, batch, settings.clip))
        if number >= min(settings.steps * 0.9, settings.steps - 1):
            with torch.no_grad():
                table.copy_(table.bfloat16())
        if number % 200 == 0 or number + 1 == settings.steps:
            logger.info(
                "verifier step %d/%d loss %.4f, %.0f s",
                number + 1, settings.steps, recent[-1].item(), time.perf_counter() - started,
            )  # fmt: skip
    torch.set_float32_matmul_precision("highest")
    final = float(torch.stack(list(recent)).mean())
    if not final < float("inf"):
        raise FloatingPointError(f"verifier: the loss is {final} after {settings.steps} steps")
    return model.eval(), final


def take_step(
    model: T5Gemma2ForConditionalGeneration, optimizer: torch.optim.Optimizer, batch: Batch, clip: float
) -> torch.Tensor:
    """One optimizer step on `batch`, gradients clipped at the norm `clip`; the loss before it (nats a token)."""
    states, _ = verifier_states(model, batch.prompts, batch.prompt_mask, batch.tokens[:, :-1])
    labels = batch.tokens[:, 1:].masked_fill(~batch.loss_mask[:, 1:], -100)  # what cross_entropy leaves out
    loss = functional.cross_entropy(model.lm_head(states).flatten(0, 1), labels.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.detach()


def _batches(samples: Sequence[Sample], settings: VerifierSettings) -> Iterator[list[int]]:
    """Indices of full batches, epoch after epoch without an end."""
    size = min(settings.batch_size, len(samples))
    for epoch in itertools.count():
        yield from (rows for rows in length_batches(samples, size, settings.seed, epoch) if len(rows) == size)
