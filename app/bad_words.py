"""`bad_words` as token sequences: every way in which the model could write the word, or a refusal that says why not.

vLLM bans one division of a word into tokens, and the form with a space in front only where that has as many tokens: the
word then appears all the same, spaced, or in other pieces. Here both forms are banned in every division.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.engine import InvalidRequest, Tokenizer

MAX_SEQUENCES = 128
MAX_TOKENS = 1024
"""What vLLM's V2 runner has room for in one request."""


def banned(
    words: Sequence[str], tokenizer: Tokenizer, allowed: Collection[int] | None = None
) -> list[list[int]]:
    """The sequences of which the last token is never generated after the others.

    Raises:
        InvalidRequest: a word has no letters or too many divisions, or no token of `allowed` is sure to stay.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise InvalidRequest(f"bad_words: {word[:32]!r} cannot be banned: it is all spaces", "bad_words")
        for form in (bare, f" {bare}"):
            # One more than there is room for tells that there is none.
            ways = tokenizer.spellings(form, MAX_SEQUENCES + 1)
            found.update(dict.fromkeys(map(tuple, ways)))
        if len(found) > MAX_SEQUENCES or sum(map(len, found)) > MAX_TOKENS:
            raise InvalidRequest(
                f"bad_words: {word[:32]!r} cannot be banned: with it there are more than {MAX_SEQUENCES} sequences or"
                f" {MAX_TOKENS} tokens that write one of the words",
                "bad_words",
            )
    if allowed is not None and set(allowed) <= {ids[-1] for ids in found}:
        raise InvalidRequest("bad_words: bans may leave none of allowed_token_ids", "bad_words")
    return [list(ids) for ids in found]
