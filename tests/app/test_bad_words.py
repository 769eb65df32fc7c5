"""Which token sequences a banned word becomes, with the demo's tokenizer and with small vocabularies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from app.bad_words import banned
from app.engine import InvalidRequest
from app.hf_tokenizer import ThreadSafeTokenizer

FOLDER = Path(__file__).parents[2] / "plugin" / "demo" / "verifier"
BACKEND = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
DEMO = ThreadSafeTokenizer(SimpleNamespace(backend_tokenizer=BACKEND, truncation_side="right"))


@pytest.mark.parametrize("word", ["speed", " speed", "day"])
def test_every_division(word: str) -> None:
    """Against all pairs, triples ... of the vocabulary that write it; the spaced form has other tokens (N09)."""
    found = banned([word], DEMO)
    names = {token_id: name for name, token_id in BACKEND.get_vocab().items()}
    written = {word.strip(), "Ġ" + word.strip()}
    assert {"".join(names[i] for i in ids) for ids in found} == written

    def ways(rest: str) -> int:
        if not rest:
            return 1
        vocab = BACKEND.get_vocab()
        return sum(ways(rest[n:]) for n in range(1, len(rest) + 1) if rest[:n] in vocab)

    assert len(found) == len({tuple(ids) for ids in found}) == sum(map(ways, written))
    for form in (word.strip(), f" {word.strip()}"):
        assert DEMO.encode(form, False) in found


MANY = ["kilometers and minutes and dollars and answers"]


@pytest.mark.parametrize("words", [["  "], MANY, [*["a"] * 3, *["many hours"] * 60, "kilometers per hour"]])
def test_what_cannot_be_banned_is_named(words: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be banned") as refused:
        banned(words, DEMO)
    assert refused.value.param == "bad_words"


def test_bans_that_may_leave_nothing() -> None:
    """vLLM would then draw from tokens that are not allowed (N10)."""
    (letter,) = DEMO.encode("A", False)
    other = DEMO.encode("B", False)[0]
    with pytest.raises(InvalidRequest, match="allowed_token_ids"):
        banned(["A"], DEMO, [letter])
    assert [letter] in banned(["A"], DEMO, [letter, other])
