"""Windows give what the whole text gives: on the demo's tokenizer, and on one without words, as Gemma's is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers

from app.text.windows import parts

FOLDER = Path(__file__).parents[3] / "plugin" / "demo" / "verifier"
DEMO = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def gemma_like() -> Tokenizer:
    """The whole text is one word, spaces are letters, and runs of them merge: nothing divides it but BPE itself."""
    merges = [
        ("▁", "▁"),
        ("▁▁", "▁▁"),
        ("a", "b"),
        ("b", "a"),
        ("ab", "a"),
        ("a", "a"),
        ("aa", "aa"),
        ("▁", "ab"),
        ("ba", "b"),
    ]
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    for piece in ["▁", "a", "b", "c", *(one + two for one, two in merges)]:
        vocab.setdefault(piece, len(vocab))
    made = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    return made


PIECES = ["a", "b", " ", "aa", "ab", "  ", "c", "é", "🙂", "speed", "12", "<eos>", "\n", "      "]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=80).map("".join)


def joined(tokenizer: Tokenizer, text: str, window: int, overlap: int) -> tuple[list[int], list[int]]:
    def encode(piece: str) -> Any:
        return tokenizer.encode(piece, add_special_tokens=False)

    return [i for part in parts(text, encode, window, overlap) for i in part], encode(text).ids


@pytest.mark.parametrize("tokenizer", [DEMO, gemma_like()])
@settings(max_examples=400, deadline=None)
@given(text=TEXTS, window=st.integers(24, 60))
@example(text="a" * 300, window=32)
@example(text=" " * 301 + "a", window=32)
@example(text="🙂" * 200, window=25)
@example(text="ab" * 200 + "aab" * 100, window=31)
def test_joined_is_whole(tokenizer: Tokenizer, text: str, window: int) -> None:
    """Whatever runs, characters of several bytes and special tokens the cuts meet."""
    found, whole = joined(tokenizer, text, window, 16)
    assert found == whole


@pytest.mark.parametrize("tokenizer", [DEMO, gemma_like()])
def test_long_texts(tokenizer: Tokenizer) -> None:
    """At the sizes that serve."""
    words = ["speed", " a", "bab", "   ", "<bos>", " The train", "17", "é🙂", "\n\n"]
    draw = random.Random(1)
    for text in ("".join(draw.choices(words, k=40_000)), "a" * 100_000, "ab " * 30_000):
        found, whole = joined(tokenizer, text, 16_384, 1_024)
        assert found == whole


def test_a_prefix_is_read_no_further() -> None:
    """One step takes two windows of a long text."""
    seen = []

    def encode(piece: str) -> Any:
        seen.append(len(piece))
        return DEMO.encode(piece, add_special_tokens=False)

    next(parts("some words " * 100_000, encode, 1000, 100))
    assert seen == [1000, 1000]
