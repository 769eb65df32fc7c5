"""Online extraction: the frozen verifier's hidden states, taken while the draft trains, never stored.

A draft reads, for every decoder position, the output of `post_feedforward_layernorm` of the chosen decoder layers: the
normalised MLP branch before it is added to the residual stream. The plugin's verifier hands out the same signal.

Logits over the whole vocabulary of a T5Gemma 2 would take half a megabyte a token. Extraction therefore ends at the
final normed states, and logits are computed from them where they are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from plugin.training.verifier.forward import RunLayer, run_layer, verifier_states


@dataclass(frozen=True, slots=True)
class VerifierStates:
    """`aux` [rows, length, layers, hidden], `states` [rows, length, hidden] (final, normed), by decoder column."""

    aux: torch.Tensor
    states: torch.Tensor


class Extractor:
    """Runs a `T5Gemma2ForConditionalGeneration` of transformers and taps its decoder layers `layer_ids` (0-based).

    `pad_id` and `start_id` are the verifier's decoder's tokens, by which samples are made into batches. Raises
    `ValueError` for layers that it does not have, or not in ascending order, and for attention other than `sdpa`.
    """

    def __init__(self, verifier: nn.Module, layer_ids: Sequence[int]) -> None:
        self.verifier: Any = verifier
        self.layer_ids = tuple(layer_ids)
        decoder = self.verifier.config.decoder
        self.pad_id, self.start_id = decoder.pad_token_id, decoder.bos_token_id
        self._rows: tuple[torch.Tensor, torch.Tensor] | None = None
        layers = self.verifier.get_decoder().layers
        for layer_id in self.layer_ids:
            if not 0 <= layer_id < len(layers):
                raise ValueError(
                    f"aux_hidden_state_layer_ids: {layer_id} is not one of the {len(layers)} decoder layers"
                )
        for part in (self.verifier.config.encoder.text_config, self.verifier.config.decoder):
            if part._attn_implementation != "sdpa":
                raise ValueError(
                    f"verifier: attention implementation is {part._attn_implementation!r}, extraction wants 'sdpa'"
                )
        # On CUDA two programs, one for all layers of a stack, whatever the shapes.
        compiles = self.verifier.device.type == "cuda"
        self._layer: RunLayer = torch.compile(run_layer, dynamic=True) if compiles else run_layer
        if list(self.layer_ids) != sorted(set(self.layer_ids)):
            raise ValueError(f"aux_hidden_state_layer_ids: {list(self.layer_ids)} is not strictly ascending")

    @torch.no_grad()
    def __call__(
        self, prompts: torch.Tensor, prompt_mask: torch.Tensor, tokens: torch.Tensor
    ) -> VerifierStates:
        """States for encoder ids `prompts` (mask true on real tokens) and decoder ids `tokens`, teacher forced.

        `tokens` [rows, length] are right padded; no mask is needed for them, since the decoder is causal.
        """
        # A batch of one would be two programs more: torch takes a dimension of 1 for a constant.
        layer = self._layer if len(tokens) > 1 else run_layer
        states, taken = verifier_states(self.verifier, prompts, prompt_mask, tokens, self.layer_ids, layer)
        return VerifierStates(torch.stack(taken, dim=2), states)

    @torch.no_grad()
    def logits(self, states: torch.Tensor, t2d: torch.Tensor | None = None) -> torch.Tensor:
        """The verifier's logits [..., vocabulary] of final `states` [..., hidden], soft-capped as transformers does.

        With `t2d` (bool [vocabulary]) only those of its tokens, [..., draft vocabulary].
        """
        head = self.verifier.lm_head.out_proj.weight
        return self._capped(functional.linear(states, head if t2d is None else self._reduced(head, t2d)))

    @torch.no_grad()
    def greedy_tokens(self, states: torch.Tensor, chunk: int = 1024) -> torch.Tensor:
        """The verifier's likeliest token of each of `states` [..., hidden]: int64 [...], `chunk` rows at a time.

        Soft-capping does not change which one is largest.
        """
        head = self.verifier.lm_head.out_proj.weight
        flat = states.flatten(0, -2)
        found = [functional.linear(part, head).argmax(dim=-1) for part in flat.split(chunk)]
        return torch.cat(found).view(states.shape[:-1])

    def _reduced(self, head: torch.Tensor, t2d: torch.Tensor) -> torch.Tensor:
        """The head's rows for `t2d`, gathered once for each vocabulary."""
        if self._rows is None or self._rows[0] is not t2d:
            self._rows = (t2d, head[t2d.to(head.device)])
        return self._rows[1]

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        cap = self.verifier.config.decoder.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap
