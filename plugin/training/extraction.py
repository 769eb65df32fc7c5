"""Online extraction: the frozen verifier's hidden states, taken while the draft trains, never stored.

A draft reads, for every decoder position, the output of `post_feedforward_layernorm` of the chosen decoder layers: the
normalised MLP branch before it is added to the residual stream. The plugin's verifier hands out the same signal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class VerifierStates:
    """`aux` [rows, length, layers, hidden], `logits` [rows, length, vocabulary], both over decoder columns."""

    aux: torch.Tensor
    logits: torch.Tensor


class Extractor:
    """Runs a `T5Gemma2ForConditionalGeneration` of transformers and taps its decoder layers `layer_ids` (0-based)."""

    def __init__(self, verifier: nn.Module, layer_ids: Sequence[int]) -> None:
        self.verifier: Any = verifier
        self.layer_ids = tuple(layer_ids)
        layers = self.verifier.get_decoder().layers
        for layer_id in self.layer_ids:
            if not 0 <= layer_id < len(layers):
                raise ValueError(
                    f"aux_hidden_state_layer_ids: {layer_id} is not one of the {len(layers)} decoder layers"
                )
        if list(self.layer_ids) != sorted(set(self.layer_ids)):
            raise ValueError(f"aux_hidden_state_layer_ids: {list(self.layer_ids)} is not strictly ascending")

    @contextmanager
    def _taps(self) -> Iterator[dict[int, torch.Tensor]]:
        taken: dict[int, torch.Tensor] = {}
        handles = []
        for layer_id in self.layer_ids:

            def keep(
                _module: nn.Module, _inputs: Any, output: torch.Tensor, layer_id: int = layer_id
            ) -> None:
                taken[layer_id] = output

            norm = self.verifier.get_decoder().layers[layer_id].post_feedforward_layernorm
            handles.append(norm.register_forward_hook(keep))
        try:
            yield taken
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def __call__(
        self, prompts: torch.Tensor, prompt_mask: torch.Tensor, tokens: torch.Tensor
    ) -> VerifierStates:
        """States for encoder ids `prompts` (mask true on real tokens) and decoder ids `tokens`, teacher forced.

        `tokens` [rows, length] are right padded; no mask is needed for them, since the decoder is causal.
        """
        with self._taps() as taken:
            output = self.verifier(
                input_ids=prompts,
                attention_mask=prompt_mask.long(),
                decoder_input_ids=tokens,
                use_cache=False,
            )
        return VerifierStates(torch.stack([taken[i] for i in self.layer_ids], dim=2), output.logits)
