"""The demo's tokenizer: any text survives it, digits stand alone, special ids are Gemma's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from plugin.training.data.problems.generate import take
from plugin.training.demo import tokenizer as vocabulary

TEXTS = [text for problem in take(0, "train", 3000) for text in (problem.question, problem.answer)]
LEARNED = vocabulary.learn_tokenizer(TEXTS, max_length=1024)


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    LEARNED.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_special_tokens_have_gemmas_ids(reloaded: PreTrainedTokenizerFast) -> None:
    ids = (reloaded.pad_token_id, reloaded.eos_token_id, reloaded.bos_token_id, reloaded.unk_token_id)
    assert ids == (0, 1, 2, 3)
    assert reloaded.mask_token == "<mask>" and reloaded.mask_token_id == 4
    assert reloaded.convert_tokens_to_ids(list(vocabulary.SPECIAL_TOKENS)) == list(range(8))
    assert len(reloaded) == vocabulary.VOCABULARY_SIZE
    assert reloaded.chat_template is None


def test_bos_stands_in_front_and_nothing_behind(reloaded: PreTrainedTokenizerFast) -> None:
    bare = reloaded("a train", add_special_tokens=False).input_ids
    assert reloaded("a train").input_ids == [2, *bare]
    assert reloaded("").input_ids == [2]


def test_each_digit_is_a_token(reloaded: PreTrainedTokenizerFast) -> None:
    tokens = reloaded.convert_ids_to_tokens(reloaded("60 / 12345 = 7", add_special_tokens=False).input_ids)
    assert [token for token in tokens if any(character.isdigit() for character in token)] == list("60123457")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_survives(text: str) -> None:
    if any(token in text for token in vocabulary.SPECIAL_TOKENS):
        return
    ids = LEARNED(text).input_ids
    assert LEARNED.decode(ids, skip_special_tokens=True) == text
    assert all(0 <= token < vocabulary.VOCABULARY_SIZE for token in ids)


@pytest.mark.parametrize("text", ["A👩‍👩‍👧é中", " don 't , ", "\t\n \r\n", "१२३", "\x00\x7f"])
def test_awkward_texts_survive(reloaded: PreTrainedTokenizerFast, text: str) -> None:
    assert reloaded.decode(reloaded(text).input_ids, skip_special_tokens=True) == text


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="entries learned where 768 are wanted"):
        vocabulary.learn_tokenizer(["one text"], max_length=1024)
