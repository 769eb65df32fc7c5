"""The verifier of a run: frozen, on its device, with its tokenizer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import AutoTokenizer, T5Gemma2ForConditionalGeneration
from transformers.utils import logging as transformers_logging

_FINGERPRINT_VALUES: Final = 256


@dataclass(frozen=True, slots=True)
class FrozenVerifier:
    """The frozen verifier on its device, its tokenizer, and the token that ends a response."""

    model: T5Gemma2ForConditionalGeneration
    tokenizer: Any
    end_id: int

    @classmethod
    def load(cls, folder: str, device: torch.device) -> FrozenVerifier:
        """The checkpoint in `folder`, in its own precision on CUDA and in float32 elsewhere."""
        transformers_logging.disable_progress_bar()
        dtype: Any = "auto" if device.type == "cuda" else torch.float32
        model = T5Gemma2ForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        )
        ends = model.config.decoder.eos_token_id
        return cls(
            model.to(device).eval().requires_grad_(False),
            AutoTokenizer.from_pretrained(folder),
            ends if isinstance(ends, int) else ends[0],
        )

    @property
    def table(self) -> torch.Tensor:
        """The raw embedding [vocabulary, hidden]."""
        return self.model.get_input_embeddings().weight.detach()

    def fingerprint(self) -> str:
        """Of some values of every text weight: equal for the same verifier wherever it lies, in whatever precision.

        A fine-tuned verifier often keeps the embedding of its ancestor, so the embedding alone would not tell them
        apart. The vision tower, which text never reaches, is left out.
        """
        digest = hashlib.blake2b(digest_size=16)
        for name, parameter in self.model.named_parameters():
            if "vision" not in name and "multi_modal" not in name:
                values = parameter.detach().flatten()
                some = values[:: max(1, len(values) // _FINGERPRINT_VALUES)].float().cpu()
                digest.update(some.numpy().tobytes())
        return digest.hexdigest()
