"""A verifier and drafts small enough to run in milliseconds, on random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import T5Gemma2Config, T5Gemma2ForConditionalGeneration

from plugin.training.demo.tiny_verifier import tiny_config
from plugin.training.draft.config import DraftConfig, Family
from plugin.training.draft.model import TrainableDraft
from plugin.training.draft.vocabulary import draft_vocabulary

VOCABULARY = 64
HIDDEN = 32


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on many threads, and sums then differ from run to run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_config() -> T5Gemma2Config:
    """The demo verifier's config at a quarter of its width and with a small vocabulary."""
    config = tiny_config()
    for part in (config.encoder.text_config, config.decoder):
        part.vocab_size, part.hidden_size, part.intermediate_size = VOCABULARY, HIDDEN, 48
        part.num_attention_heads, part.num_key_value_heads, part.head_dim, part.query_pre_attn_scalar = (
            4,
            2,
            8,
            8,
        )
        part.sliding_window = 4
    return config


@pytest.fixture(scope="session")
def verifier() -> T5Gemma2ForConditionalGeneration:
    """A random verifier with every norm weight moved off its initial value."""
    torch.manual_seed(0)
    model = T5Gemma2ForConditionalGeneration(small_config()).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.normal_(std=0.3)
    return model


@pytest.fixture
def make_draft(verifier: T5Gemma2ForConditionalGeneration) -> Callable[..., TrainableDraft]:
    """`make_draft(family, **fields)`: a random draft for `verifier`."""

    def make(family: Family, **fields: object) -> TrainableDraft:
        torch.manual_seed(1)
        shape = {"num_hidden_layers": 2, "aux_hidden_state_layer_ids": (0, 2, 5), "mask_token_id": 4}
        config = DraftConfig.for_decoder(family, verifier.config.decoder, draft_vocab_size=40, **shape)
        config = dataclasses.replace(config, markov_rank=8, **fields)  # type: ignore[arg-type]
        t2d, d2t = draft_vocabulary([range(3, 60, 2)], config.vocab_size, config.draft_vocab_size)
        return TrainableDraft(config, verifier.get_input_embeddings().weight.detach(), t2d, d2t)

    return make
