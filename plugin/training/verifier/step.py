"""One optimizer step of the verifier, and its replay as a CUDA graph.

The model is small enough that launching its kernels takes longer than running them. The step is therefore written
without anything that waits for the device (transformers' own forward does, where it looks for the end-of-image token
and for masks it can leave out), so that CUDA can record it once and replay it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.data.samples import IGNORED_LABEL

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Prompts, their mask, decoder tokens and labels: [rows, length] each."""


def verifier_logits(
    model: T5Gemma2ForConditionalGeneration,
    prompts: torch.Tensor,
    prompt_mask: torch.Tensor,
    tokens: torch.Tensor,
) -> torch.Tensor:
    """[rows, decoder length, vocabulary], equal to the model's own forward on text without image tokens.

    `final_logit_softcapping` is left out: the verifiers that are trained here have none.
    """
    return model.lm_head(verifier_states(model, prompts, prompt_mask, tokens))


def verifier_states(
    model: T5Gemma2ForConditionalGeneration,
    prompts: torch.Tensor,
    prompt_mask: torch.Tensor,
    tokens: torch.Tensor,
) -> torch.Tensor:
    """The decoder's final normed states [rows, decoder length, hidden], computed without waiting for the device.

    The masks are those that transformers builds for attention by `sdpa`.
    """
    window = model.config.decoder.sliding_window
    reach = model.config.encoder.text_config.sliding_window
    table = model.get_input_embeddings()
    prompt_mask = prompt_mask.bool()
    visible = prompt_mask[:, None, None, :]
    own = _distances(prompts.shape[1], prompts.device)
    near = (own < (reach + 1) // 2) & (own > -(reach // 2 + 1))
    encoded = model.get_encoder()(
        inputs_embeds=_embedded(table, prompts),
        attention_mask={
            "full_attention": visible.expand(-1, -1, prompts.shape[1], -1),
            "sliding_attention": visible & near,
        },
    ).last_hidden_state
    back = _distances(tokens.shape[1], tokens.device)
    causal = (back >= 0).expand(tokens.shape[0], 1, -1, -1)
    return model.get_decoder()(
        inputs_embeds=_embedded(table, tokens),
        attention_mask={"full_attention": causal, "sliding_attention": causal & (back < window)},
        encoder_hidden_states=encoded,
        encoder_attention_mask={"full_attention": visible.expand(-1, -1, tokens.shape[1], -1)},
        use_cache=False,
    ).last_hidden_state


def _embedded(table: Any, ids: torch.Tensor) -> torch.Tensor:
    """What the embedding module computes, with a selection where it has an indexed assignment, which would wait."""
    scaled = functional.embedding(ids, table.weight) * table.embed_scale.to(table.weight.dtype)
    return torch.where(
        (ids == table.eoi_token_index)[..., None], table.eoi_embedding.to(scaled.dtype), scaled
    )


def _distances(length: int, device: torch.device) -> torch.Tensor:
    """[length, length]: query position minus key position."""
    places = torch.arange(length, device=device)
    return places[:, None] - places[None, :]


class VerifierStep:
    """Forward, backward, gradient clipping and AdamW on one batch; `rate` is set before every call."""

    def __init__(
        self, model: T5Gemma2ForConditionalGeneration, weight_decay: float, clip: float, capturable: bool
    ) -> None:
        self.model, self.clip = model, clip
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        device = self.parameters[0].device
        self.rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.rate if capturable else 0.0,
            weight_decay=weight_decay,
            betas=(0.9, 0.98),
            capturable=capturable,
            fused=True,
        )
        self.capturable = capturable

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step."""
        if self.capturable:
            self.rate.fill_(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """Takes the step and gives the loss (nats a token), detached."""
        prompts, prompt_mask, tokens, labels = inputs
        logits = verifier_logits(self.model, prompts, prompt_mask, tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        return loss.detach()


def captured(step: VerifierStep, example: Inputs) -> Callable[[Inputs], torch.Tensor]:
    """`step` recorded as a CUDA graph for batches shaped like `example`.

    Recording needs a few real steps on `example` first; they are taken at a learning rate of 0.
    """
    held: Inputs = (example[0].clone(), example[1].clone(), example[2].clone(), example[3].clone())
    step.set_rate(0.0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(held)

    def replay(inputs: Inputs) -> torch.Tensor:
        for target, source in zip(held, inputs, strict=True):
            target.copy_(source)
        graph.replay()
        return loss.clone()

    return replay
