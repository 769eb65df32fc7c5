"""The verifier's forward pass without waits: equal to transformers' own."""

from __future__ import annotations

import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.verifier.forward import verifier_states


def test_logits_equal_transformers(verifier: T5Gemma2ForConditionalGeneration) -> None:
    torch.manual_seed(0)
    prompts, tokens = torch.randint(8, 60, (3, 17)), torch.randint(8, 60, (3, 23))
    mask = torch.arange(17) < torch.tensor([[17], [9], [1]])
    prompts[0, 3] = tokens[1, 5] = verifier.config.eoi_token_index  # has an embedding of its own
    wanted = verifier(
        input_ids=prompts, attention_mask=mask.long(), decoder_input_ids=tokens, use_cache=False
    ).logits
    states, branches = verifier_states(verifier, prompts, mask, tokens)
    assert branches == []
    assert (verifier.lm_head(states) - wanted).abs().max() < 1e-5
