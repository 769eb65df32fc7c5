"""Which token sequences a banned word becomes, with the demo's tokenizer and with a vocabulary of real size."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from app.engine import InvalidRequest
from app.text.bad_words import MAX_SEQUENCES, MAX_TOKENS, banned
from app.text.hf_tokenizer import ThreadSafeTokenizer

FOLDER = Path(__file__).parents[3] / "plugin" / "demo" / "verifier"
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


@pytest.fixture(scope="module")
def large() -> ThreadSafeTokenizer:
    """262 144 entries, as Gemma's: bytes, all pairs and triples of letters, and words of four, spaced ones too."""
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in ["Ġ", *letters] for b in letters]
    merges += [(a + b, c) for a, b in merges for c in letters]
    fours = ((a + b, c) for a, b in merges if len(a + b) == 3 for c in letters)
    merges += islice(fours, SIZE - len(alphabet) - len(merges))
    vocab = {name: i for i, name in enumerate([*alphabet, *(a + b for a, b in merges)])}
    assert len(vocab) == SIZE
    made = Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return ThreadSafeTokenizer(SimpleNamespace(backend_tokenizer=made, truncation_side="right"))


SIZE = 262_144
ORDINARY = ["speed", "average", "kilometers", "responsibility", "average speed of the train"]


@pytest.mark.parametrize("word", ORDINARY)
def test_ordinary_words_of_a_large_vocabulary(large: ThreadSafeTokenizer, word: str) -> None:
    """A word has exponentially many divisions there: it is banned as the tokenizer writes it, bare and spaced, and in
    the shortest of the others.
    """
    found = banned([word], large)
    assert large.encode(word, False) in found and large.encode(f" {word}", False) in found
    assert {large.decode(ids, False) for ids in found} == {word, f" {word}"}
    assert len({tuple(ids) for ids in found}) == len(found) <= MAX_SEQUENCES
    assert sum(map(len, found)) <= MAX_TOKENS
    # Nothing shorter was left out.
    kept = {tuple(ids) for ids in found}
    for form in (word, f" {word}"):
        every = [tuple(ids) for ids in large.spellings(form, 5000)]
        assert every == sorted(every, key=len)
        longest = max(len(ids) for ids in found[2:])
        assert all(ids in kept for ids in every if len(ids) < longest)


def test_many_words(large: ThreadSafeTokenizer) -> None:
    """Each as the tokenizer writes it, whatever room is left for other divisions; quick, for others wait."""
    words = [f"{word} {other}" for word in ORDINARY for other in ORDINARY][:24] + ["x" * 64] * 8
    began = time.process_time()
    found = banned(words, large)
    assert time.process_time() - began < 2
    for word in words:
        assert large.encode(word, False) in found and large.encode(f" {word}", False) in found
    assert len(found) == MAX_SEQUENCES or sum(map(len, found)) > MAX_TOKENS - 64


TOO_MANY = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmnopq"][:65]


@pytest.mark.parametrize(("words", "why"), [(["  "], "all spaces"), (TOO_MANY, "130 sequences")])
def test_what_cannot_be_banned_is_named(words: list[str], why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"bad_words.*{why}") as refused:
        banned(words, DEMO)
    assert refused.value.param == "bad_words"


def test_too_many_tokens(large: ThreadSafeTokenizer) -> None:
    words = [f"{letter * 60}9" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]
    with pytest.raises(InvalidRequest, match=f"at most 128 with {MAX_TOKENS} can be banned"):
        banned(words, large)


def test_bans_that_may_leave_nothing() -> None:
    """vLLM would then draw from tokens that are not allowed (N10)."""
    (letter,) = DEMO.encode("A", False)
    other = DEMO.encode("B", False)[0]
    with pytest.raises(InvalidRequest, match="allowed_token_ids"):
        banned(["A"], DEMO, [letter])
    assert banned(["A"], DEMO, [letter, other]) == [[letter]]
    with pytest.raises(InvalidRequest, match="allowed_token_ids"):
        banned(["A"], DEMO, [letter, other], held_back=[other])


def test_only_what_can_be_written(large: ThreadSafeTokenizer) -> None:
    """Of other tokens than the allowed ones no division need be banned, which leaves room for all that need."""
    allowed = [large.encode(letter, False)[0] for letter in "speda"]
    assert banned(["speed"], large, allowed) == [[large.encode(letter, False)[0] for letter in "speed"]]
