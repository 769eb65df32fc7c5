"""Training samples as token ids: encoding, splitting into training and validation, padding into batches."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from plugin.training.data.pairs import Pair
from plugin.training.device import to_device

logger = logging.getLogger(__name__)

_ENCODED_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt (encoder ids), its response (decoder ids without the start token, with the end token), the id of the
    row that it came from, and whether its texts were longer and cut.
    """

    prompt: list[int]
    response: list[int]
    id: str = ""
    prompt_cut: bool = False
    response_cut: bool = False


def encode(
    tokenizer: Any,
    pairs: Sequence[Pair],
    end_id: int,
    prompt_length: int = 2048,
    response_length: int = 1024,
) -> list[Sample]:
    """`pairs` as samples in the same order; longer texts are cut where the tokenizer cuts (see `cut_counts`), lengths
    in tokens.

    `end_id` closes every response, one that was cut too, and counts in `response_length`: 1024 are at most 1023 tokens
    of text and the end token, as in the published recipe. What looks like a special token in a response, `<eos>`, is
    text like any other: the verifier never says it so. In a prompt it is the token, as it is when served.
    """
    # 200,000 samples hold more than 10^8 tokens: one int object an id, not one a token, keeps them at 8 bytes each.
    known: dict[int, int] = {}
    samples = []
    for start in range(0, len(pairs), _ENCODED_AT_ONCE):
        part = pairs[start : start + _ENCODED_AT_ONCE]
        prompts = tokenizer([pair.prompt for pair in part], truncation=True, max_length=prompt_length)
        responses = tokenizer(
            [pair.response for pair in part],
            add_special_tokens=False,
            split_special_tokens=True,
            truncation=True,
            max_length=response_length - 1,
        )
        for number, pair in enumerate(part):
            prompt, response = (
                [known.setdefault(token, token) for token in ids.input_ids[number]]
                for ids in (prompts, responses)
            )
            cut = [bool(ids.encodings[number].overflowing) for ids in (prompts, responses)]
            samples.append(Sample(prompt, [*response, end_id], pair.id, *cut))
    return samples


def cut_counts(tokenizer: Any, samples: Iterable[Sample]) -> dict[str, Any]:
    """How many prompts and responses were cut, and at which `side`; JSON-ready, and in the log where there are any."""
    flags = [(sample.prompt_cut, sample.response_cut) for sample in samples]
    prompts, responses = (sum(column) for column in zip(*flags, strict=True)) if flags else (0, 0)
    side = "beginning" if tokenizer.truncation_side == "left" else "end"
    if prompts or responses:
        logger.warning(
            "of %d samples %d prompts and %d responses are longer than they may be; their %s is cut", len(flags),
            prompts, responses, side,
        )  # fmt: skip
    return {"prompts": prompts, "responses": responses, "side": side}


def split_samples(
    samples: Sequence[Sample], train_fraction: float = 0.9, seed: int = 42
) -> tuple[list[Sample], list[Sample]]:
    """`samples` shuffled by `seed` and cut into (training, validation).

    With two samples or more and a fraction below 1 each part holds at least one. A single sample, or a fraction of 1,
    leaves the validation part empty and says so in the log. Raises `ValueError` for no samples or a fraction outside
    (0, 1].
    """
    if not samples:
        raise ValueError("samples: none given, nothing to train on")
    if not 0.0 < train_fraction <= 1.0:
        raise ValueError(f"train_fraction: {train_fraction} is not above 0 and at most 1")
    order = list(range(len(samples)))
    random.Random(seed).shuffle(order)
    cut = round(len(samples) * train_fraction)
    if train_fraction < 1.0 and len(samples) > 1:
        cut = min(max(cut, 1), len(samples) - 1)
    else:
        cut = len(samples)
        logger.warning(
            "no validation: %d sample(s) at a training fraction of %s", len(samples), train_fraction
        )
    return [samples[i] for i in order[:cut]], [samples[i] for i in order[cut:]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded samples. Shapes: `prompts`, `prompt_mask` [rows, prompt length]; the rest [rows, decoder length].

    `tokens` are the decoder tokens with the start token in column 0 and the end token last; `documents` number the
    sample that a column belongs to (-1 = padding), `positions` its decoder position, and `loss_mask` is true on
    response tokens.
    """

    prompts: torch.Tensor
    prompt_mask: torch.Tensor
    tokens: torch.Tensor
    documents: torch.Tensor
    positions: torch.Tensor
    loss_mask: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`."""
        return Batch(*(to_device(getattr(self, name), device) for name in self.__slots__))


def collate(samples: Sequence[Sample], pad_id: int, start_id: int) -> Batch:
    """`samples` as one batch, one sample a row, right padded to the longest prompt and the longest response."""
    prompts, prompt_mask = _pad([sample.prompt for sample in samples], pad_id)
    tokens, inside = _pad([[start_id, *sample.response] for sample in samples], pad_id)
    columns = torch.arange(tokens.shape[1]).expand(len(samples), -1)
    rows = torch.arange(len(samples))[:, None].expand_as(tokens)
    return Batch(
        prompts=prompts,
        prompt_mask=prompt_mask,
        tokens=tokens,
        documents=torch.where(inside, rows, -1),
        positions=columns.clone(),
        loss_mask=inside & (columns > 0),
    )


def length_batches(samples: Sequence[Sample], size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Indices of one epoch's batches of `size`, each of responses of like length, in an order set by `seed`.

    Sorting happens within runs of 32 batches, so that batches stay mixed while little is padded. At most one batch, in
    the last run, is smaller.
    """
    order = epoch_order(len(samples), seed, epoch)
    rng = random.Random(f"{seed}/{epoch}/batches")
    for start in range(0, len(order), size * 32):
        run = sorted(order[start : start + size * 32], key=lambda index: len(samples[index].response))
        groups = [run[first : first + size] for first in range(0, len(run), size)]
        rng.shuffle(groups)
        yield from groups


def _pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    padded = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_id)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, torch.arange(padded.shape[1]) < lengths[:, None]


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """The order in which epoch number `epoch` visits `count` samples; a function of its arguments alone."""
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def batches(samples: Sequence[Sample], size: int, order: Sequence[int]) -> Iterator[list[Sample]]:
    """`samples` in `order`, `size` at a time, the last batch possibly smaller."""
    for start in range(0, len(order), size):
        yield [samples[i] for i in order[start : start + size]]
