"""What a verifier answers greedily: what its drafts are judged by, and what they learn best from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.data.samples import Sample, batches, collate


@torch.no_grad()
def greedy_responses(
    verifier: T5Gemma2ForConditionalGeneration,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    batch_size: int,
) -> list[list[int]]:
    """The verifier's greedy response to each prompt (encoder ids), end token included where it was reached.

    A response ends at an end token of the decoder's config or of the generation config, as it does when served.
    """
    device = next(verifier.parameters()).device
    decoder = verifier.config.decoder
    pad_id, ends = decoder.pad_token_id, end_ids(verifier)
    asked = [Sample(prompt, []) for prompt in prompts]
    responses: list[list[int]] = []
    for group in batches(asked, batch_size, range(len(asked))):
        batch = collate(group, pad_id, decoder.bos_token_id).to(device)
        output = verifier.generate(
            input_ids=batch.prompts,
            attention_mask=batch.prompt_mask.long(),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(ends),
            pad_token_id=pad_id,
        )
        for row in output[:, 1:].tolist():
            reached = (place for place, token in enumerate(row, start=1) if token in ends)
            responses.append(row[: next(reached, len(row))])
    return responses


@torch.no_grad()
def greedy_share(
    verifier: T5Gemma2ForConditionalGeneration, prompt: Sequence[int], response: Sequence[int]
) -> float:
    """Share of the response's tokens that are the verifier's likeliest after the prompt and the tokens before them; 1
    for an empty response.
    """
    if not response:
        return 1.0
    device = next(verifier.parameters()).device
    batch = collate(
        [Sample(list(prompt), list(response))],
        verifier.config.decoder.pad_token_id,
        verifier.config.decoder.bos_token_id,
    ).to(device)
    logits = verifier(
        input_ids=batch.prompts,
        attention_mask=batch.prompt_mask.long(),
        decoder_input_ids=batch.tokens[:, :-1],
    ).logits
    return float((logits.argmax(-1) == batch.tokens[:, 1:]).float().mean())


def end_ids(verifier: T5Gemma2ForConditionalGeneration) -> set[int]:
    """The end tokens of the decoder's config and of the generation config."""
    ends: set[int] = set()
    for config in (verifier.config.decoder, verifier.generation_config):
        found = config.eos_token_id
        ends |= {found} if isinstance(found, int) else set(found or ())
    return ends
