"""`bad_words` as token sequences, or a refusal that says why they cannot be banned.

vLLM bans one division of a word into tokens, and the form with a space in front only where that has as many tokens: the
word then appears all the same, spaced, or in other pieces. Here both forms are banned as the tokenizer writes them, and
further divisions, shortest first, as long as there is room: of a large vocabulary a word has exponentially many.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.engine import InvalidRequest, Tokenizer

MAX_SEQUENCES = 128
MAX_TOKENS = 1024
"""What vLLM's V2 runner has room for in one request."""


def banned(
    words: Sequence[str],
    tokenizer: Tokenizer,
    allowed: Collection[int] | None = None,
    held_back: Collection[int] = (),
) -> list[list[int]]:
    """The sequences of which the last token is never generated after the others. With `allowed`, those of other tokens
    are left out; of these ids, one that is not `held_back` either must be sure to stay.

    Raises:
        InvalidRequest: a word has no letters, there is no room for all words as the tokenizer writes them, or no token
            is sure to stay.
    """
    forms = [form for word in words for form in _forms(word)]
    usual = [tuple(tokenizer.encode(form, False)) for form in forms]
    found = dict.fromkeys(ids for ids in usual if allowed is None or set(ids) <= set(allowed))
    tokens = sum(map(len, found))
    if len(found) > MAX_SEQUENCES or tokens > MAX_TOKENS:
        raise InvalidRequest(
            f"bad_words: with and without a space in front they are {len(found)} sequences with {tokens} tokens;"
            f" at most {MAX_SEQUENCES} with {MAX_TOKENS} can be banned",
            "bad_words",
        )
    if room := MAX_SEQUENCES - len(found):
        # Of each form one more than there is room for, since the usual division is among them.
        further = [
            tuple(ids)
            for form in dict.fromkeys(forms)
            for ids in tokenizer.spellings(form, room + 1, allowed)
        ]
        for ids in sorted(further, key=len):
            if ids not in found and len(found) < MAX_SEQUENCES and tokens + len(ids) <= MAX_TOKENS:
                found[ids] = None
                tokens += len(ids)
    if allowed is not None and set(allowed) <= {ids[-1] for ids in found}.union(held_back):
        raise InvalidRequest("bad_words: bans may leave none of allowed_token_ids", "bad_words")
    return [list(ids) for ids in found]


def _forms(word: str) -> tuple[str, str]:
    bare = word.lstrip()
    if not bare:
        raise InvalidRequest(f"bad_words: {word[:32]!r} cannot be banned: it is all spaces", "bad_words")
    return bare, f" {bare}"
