"""The verifier of a run: frozen, on its device, with its tokenizer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import AutoTokenizer, T5Gemma2ForConditionalGeneration
from transformers.utils import logging as transformers_logging

_FINGERPRINT_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class FrozenVerifier:
    """The frozen verifier on its device, its tokenizer, and the token ids that training needs."""

    model: T5Gemma2ForConditionalGeneration
    tokenizer: Any
    pad_id: int
    start_id: int
    end_id: int

    @classmethod
    def load(cls, folder: str, device: torch.device) -> FrozenVerifier:
        """The checkpoint in `folder`, in its own precision on CUDA and in float32 elsewhere."""
        transformers_logging.disable_progress_bar()
        dtype: Any = "auto" if device.type == "cuda" else torch.float32
        model = T5Gemma2ForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        )
        decoder = model.config.decoder
        ends = decoder.eos_token_id
        return cls(
            model.to(device).eval().requires_grad_(False),
            AutoTokenizer.from_pretrained(folder),
            decoder.pad_token_id,
            decoder.bos_token_id,
            ends if isinstance(ends, int) else ends[0],
        )

    @property
    def table(self) -> torch.Tensor:
        """The raw embedding [vocabulary, hidden]."""
        return self.model.get_input_embeddings().weight.detach()

    def fingerprint(self) -> str:
        """Of some rows of the embedding: equal for the same verifier wherever it lies."""
        rows = self.table[:: max(1, len(self.table) // _FINGERPRINT_ROWS)].float().cpu().contiguous()
        return hashlib.blake2b(rows.numpy().tobytes(), digest_size=16).hexdigest()
