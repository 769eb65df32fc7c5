"""The verifier's tokenizer for many threads.

transformers' fast tokenizers set padding and truncation on their Rust object at every call, which two threads
at once answer with "Already borrowed". Here the Rust object is copied, both are switched off for good, and
what remains only reads.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

from tokenizers.models import BPE

from app.text.cancellation import check
from app.text.windows import WINDOW, parts

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


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
        around = self._specials()
        self._around = around or ([], [])
        model = self._backend.model
        self._windowed = around is not None and isinstance(model, BPE) and not model.dropout
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

    def encode(self, text: str, add_special_tokens: bool, enough: int | None = None) -> list[int]:
        if len(text) <= WINDOW or not self._windowed:
            return list(self._whole(text, add_special_tokens).ids)
        before, after = self._around if add_special_tokens else ([], [])
        ids = list(before)
        for part in parts(text, self._window):
            ids += part
            if enough is not None and len(ids) >= enough:
                return ids
        return ids + after

    def _window(self, text: str) -> Any:
        check()
        return self._whole(text, False)

    def _whole(self, text: str, add_special_tokens: bool) -> Any:
        # The batch call alone lets go of the interpreter's lock.
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return encoding

    def _specials(self) -> tuple[list[int], list[int]] | None:
        """What the post-processor puts before and behind a text; None if it does something else."""
        bare, full = (self._whole("a", special).ids for special in (False, True))
        for start in range(len(full) - len(bare) + 1):
            if bare and full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        return None

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        text: str
        (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        return text

    def spellings(self, text: str, at_most: int, among: Collection[int] | None = None) -> list[list[int]]:
        # In the vocabulary's own letters; a byte that stands for itself is one letter.
        letters: list[str] = []
        for token_id in self._whole(text, False).ids:
            name = self.token(token_id)
            letters += [name] if _BYTE.fullmatch(name) else name
        size, usable = len(letters), None if among is None else frozenset(among)
        # Of each place: the tokens that begin there, as (end, id), and as bits how many tokens may follow it.
        begun: list[list[tuple[int, int]]] = [[] for _ in letters]
        counts = [0] * size + [1]
        for at in reversed(range(size)):
            for end in range(min(size, at + self._longest), at, -1):
                token_id = self._backend.token_to_id("".join(letters[at:end]))
                if token_id is None or token_id in self._special or (usable and token_id not in usable):
                    continue
                begun[at].append((end, token_id))
                counts[at] |= counts[end] << 1

        def divisions(at: int, count: int) -> Iterator[list[int]]:
            if at == size:
                yield []
                return
            for end, token_id in begun[at]:
                if counts[end] >> (count - 1) & 1:
                    yield from ([token_id, *rest] for rest in divisions(end, count - 1))

        every = (ids for count in range(1, size + 1) if counts[0] >> count & 1 for ids in divisions(0, count))
        return list(islice(every, at_most))

    def token(self, token_id: int) -> str:
        return self._backend.id_to_token(token_id) or ""
