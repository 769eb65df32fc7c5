"""Packing: several samples in one decoder row, so that little of a batch is padding.

The draft's context is the packed row; its attention mask keeps documents apart. The verifier still reads each sample by
itself, in micro-batches of samples of like length, and its states are put where the sample's tokens lie.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from plugin.training.data.samples import Sample, collate, epoch_order
from plugin.training.device import to_device
from plugin.training.verifier.extraction import Extractor

OPEN_ROWS = 32
_ALIGNMENT = 8
"""Fused attention wants key lengths that are multiples of it."""


def pack(lengths: Sequence[int], order: Sequence[int], total_length: int) -> list[list[int]]:
    """Indices of samples by row: first fit in `order` into the open rows.

    At most `OPEN_ROWS` rows are open; opening another closes the oldest. Rows come in the order of being opened.
    Raises `ValueError` for a sample longer than `total_length`.
    """
    rows: list[list[int]] = []
    free: list[int] = []
    for index in order:
        length = lengths[index]
        if length > total_length:
            raise ValueError(f"total_length: a sample of {length} tokens does not fit into {total_length}")
        for row in range(max(0, len(rows) - OPEN_ROWS), len(rows)):
            if free[row] >= length:
                rows[row].append(index)
                free[row] -= length
                break
        else:
            rows.append([index])
            free.append(total_length - length)
    return rows


def epoch_rows(lengths: Sequence[int], total_length: int, seed: int, epoch: int) -> list[list[int]]:
    """The packed rows of one epoch in the order of training; a function of its arguments alone."""
    rows = pack(lengths, epoch_order(len(lengths), seed, epoch), total_length)
    random.Random(f"{seed}/{epoch}/rows").shuffle(rows)
    return rows


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Packed samples: R rows of L columns, all tensors [R, L].

    `tokens` are decoder tokens, each sample with the start token first; `documents` number the sample of a column
    (-1 = padding), `positions` its decoder position, `loss_mask` is true on response tokens. `places` holds row and
    first column of every one of `samples`.
    """

    tokens: torch.Tensor
    documents: torch.Tensor
    positions: torch.Tensor
    loss_mask: torch.Tensor
    samples: tuple[Sample, ...]
    places: tuple[tuple[int, int], ...]

    def part(self, first: int, count: int) -> PackedRows:
        """Rows `first` ... `first + count - 1`."""
        kept = [
            (sample, (row - first, column))
            for sample, (row, column) in zip(self.samples, self.places, strict=True)
            if first <= row < first + count
        ]
        chosen = slice(first, first + count)
        return PackedRows(
            self.tokens[chosen], self.documents[chosen], self.positions[chosen], self.loss_mask[chosen],
            tuple(sample for sample, _ in kept), tuple(place for _, place in kept),
        )  # fmt: skip

    def to(self, device: torch.device) -> PackedRows:
        """The same rows with their tensors on `device`."""
        names = ("tokens", "documents", "positions", "loss_mask")
        return replace(self, **{name: to_device(getattr(self, name), device) for name in names})

    @property
    def ids(self) -> tuple[str, ...]:
        """The samples' ids."""
        return tuple(sample.id for sample in self.samples)


def packed_rows(groups: Sequence[Sequence[Sample]], pad_id: int, start_id: int) -> PackedRows:
    """One row for each group of samples, padded to the longest (rounded up to a multiple of 8 columns)."""
    length = max(sum(1 + len(sample.response) for sample in group) for group in groups)
    length += -length % _ALIGNMENT
    shape = (len(groups), length)
    tokens = torch.full(shape, pad_id, dtype=torch.long)
    documents = torch.full(shape, -1, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    samples: list[Sample] = []
    places: list[tuple[int, int]] = []
    for row, group in enumerate(groups):
        column = 0
        for sample in group:
            here = slice(column, column + 1 + len(sample.response))
            tokens[row, here] = torch.tensor([start_id, *sample.response])
            documents[row, here] = len(samples)
            positions[row, here] = torch.arange(here.stop - here.start)
            samples.append(sample)
            places.append((row, column))
            column = here.stop
    loss_mask = (documents >= 0) & (positions > 0)
    return PackedRows(tokens, documents, positions, loss_mask, tuple(samples), tuple(places))


@dataclass(frozen=True, slots=True)
class PackedStates:
    """The verifier's states of packed rows, zero on padding.

    `aux` [R, L, layers, hidden], `states` [R, L, hidden] (final, normed), `finite` bool [samples].
    """

    aux: torch.Tensor
    states: torch.Tensor
    finite: torch.Tensor


def packed_states(extractor: Extractor, rows: PackedRows, micro_batch: int) -> PackedStates:
    """Runs the verifier on every sample of `rows`, `micro_batch` at a time, on the device of `rows`."""
    samples, device = rows.samples, rows.tokens.device
    by_length = sorted(
        range(len(samples)), key=lambda number: (len(samples[number].prompt), len(samples[number].response))
    )
    aux = states = None
    finite = torch.ones(len(samples), dtype=torch.bool, device=device)
    for first in range(0, len(by_length), micro_batch):
        numbers = by_length[first : first + micro_batch]
        chosen = [samples[number] for number in numbers]
        batch = collate(chosen, extractor.pad_id, extractor.start_id).to(device)
        found = extractor(batch.prompts, batch.prompt_mask, batch.tokens)
        if aux is None or states is None:
            aux = found.aux.new_zeros(*rows.tokens.shape, *found.aux.shape[2:])
            states = found.states.new_zeros(*rows.tokens.shape, found.states.shape[-1])
        for number, sample, its_aux, its_states in zip(numbers, chosen, found.aux, found.states, strict=True):
            (row, column), length = rows.places[number], 1 + len(sample.response)
            aux[row, column : column + length] = its_aux[:length]
            states[row, column : column + length] = its_states[:length]
        outside = (batch.documents < 0)[:, :, None]
        good = (found.aux.flatten(2).isfinite() | outside).all(dim=2)
        good &= (found.states.isfinite() | outside).all(dim=2)
        finite.index_copy_(0, to_device(torch.tensor(numbers), device), good.all(dim=1))
    assert aux is not None and states is not None
    return PackedStates(aux, states, finite)
