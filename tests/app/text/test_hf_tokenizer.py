"""The tokenizer of many threads, over a byte-level model of the `tokenizers` package."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from app.text.hf_tokenizer import ThreadSafeTokenizer


def backend() -> Tokenizer:
    """Bytes and a few specials; BOS in front."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<pad>": 0, "<eos>": 1, "<bos>": 2, **{c: i + 3 for i, c in enumerate(alphabet)}}
    made = Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<pad>", "<eos>", "<bos>"])
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return made


def wrapped(**more: Any) -> tuple[Tokenizer, ThreadSafeTokenizer]:
    inner = backend()
    inner.enable_truncation(3)
    inner.enable_padding(length=9)
    fields = {"backend_tokenizer": inner, "truncation_side": "left", "chat_template": None, **more}
    return inner, ThreadSafeTokenizer(SimpleNamespace(**fields))


def test_there_and_back() -> None:
    """Neither cut nor padded, whatever the original is set to."""
    _, ours = wrapped()
    ids = ours.encode("héllo", True)
    assert ids[0] == 2 and len(ids) == 7 and ours.encode("héllo", False) == ids[1:]
    assert ours.decode(ids, True) == "héllo" and ours.decode(ids, False) == "<bos>héllo"
    assert ours.token(2) == "<bos>" and ours.token(10**6) == ""
    assert ours.max_chars_per_token == 5
    assert ours.truncation_side == "left"


def test_many_threads_beside_the_original() -> None:
    """The original sets truncation and padding at every call; ours does not notice."""
    inner, ours = wrapped()

    def disturb(_: int) -> None:
        inner.enable_truncation(2)
        inner.enable_padding(length=9)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ours.encode, "abc" * 50, True) for _ in range(200)]
        list(pool.map(disturb, range(200)))
        assert {len(job.result()) for job in jobs} == {151}


def test_slow_tokenizers_are_refused() -> None:
    with pytest.raises(TypeError, match="no fast tokenizer"):
        ThreadSafeTokenizer(SimpleNamespace())
