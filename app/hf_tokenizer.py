"""The verifier's tokenizer for many threads.

transformers' fast tokenizers set padding and truncation on their Rust object at every call, which two threads
at once answer with "Already borrowed". Here the Rust object is copied, both are switched off for good, and
what remains only reads.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal


class ThreadSafeTokenizer:
    """`app.engine.Tokenizer` over a transformers fast tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` has a `backend_tokenizer` of the `tokenizers` package.

        Raises:
            TypeError: it has none.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TypeError(f"{type(tokenizer).__name__} is no fast tokenizer")
        self._backend = copy.deepcopy(backend)
        self._backend.no_padding()
        self._backend.no_truncation()
        self._longest = max(len(token) for token in self._backend.get_vocab())
        added = self._backend.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._side: Literal["left", "right"] = "left" if tokenizer.truncation_side == "left" else "right"

    @property
    def max_chars_per_token(self) -> int:
        return self._longest

    @property
    def truncation_side(self) -> Literal["left", "right"]:
        return self._side

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token(self, token_id: int) -> str:
        return self._backend.id_to_token(token_id) or ""
