"""The demo's tokenizer: a small byte-level BPE with Gemma's special token ids, learned from the word problems.

Byte-level, so that any text survives encoding and decoding; digits stand alone, so that arithmetic has one token per
digit. Special tokens keep Gemma's numbers, for code that reads them from a real checkpoint must read them here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE: Final = 768
SPECIAL_TOKENS: Final = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<end_of_image>", "<image>", "<start_of_image>",
)  # fmt: skip
"""In the order of their ids, from 0."""
PAD_ID, EOS_ID, BOS_ID = range(3)
END_OF_IMAGE_ID, IMAGE_ID, START_OF_IMAGE_ID = range(5, 8)


def learn_tokenizer(texts: Iterable[str], max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly `VOCABULARY_SIZE` entries learned from `texts`.

    It puts `<bos>` in front of every text and appends nothing. `max_length` (tokens) is what it reports as the
    model's limit. Raises `ValueError` when `texts` are too few to fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=None, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    size = tokenizer.get_vocab_size()
    if size != VOCABULARY_SIZE:
        raise ValueError(
            f"tokenizer: {size} entries learned where {VOCABULARY_SIZE} are wanted; give it more text"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        mask_token="<mask>",
        extra_special_tokens={
            "eoi_token": "<end_of_image>",
            "image_token": "<image>",
            "boi_token": "<start_of_image>",
        },
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        padding_side="right",
        add_bos_token=True,
        add_eos_token=False,
    )
