"""The encoder's memory grows with a prompt's length, not with its square: in no layer, whole or in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.encoder_memory import encode, random_encoder
from plugin.attention import bidirectional
from plugin.verifier.encoder.passes import MOST_ROWS
from plugin.verifier.encoder.text_encoder import TextEncoder
from tests.reference.tiny import tiny_config

LENGTHS = (1024, 2048)
"""Both above a window's chunk of queries, and whole numbers of parts."""
PART = 256


@pytest.fixture(scope="module")
def encoder() -> Iterator[TextEncoder]:
    """The tiny verifier's, random."""
    config = tiny_config().encoder.text_config
    config.max_position_embeddings = max(LENGTHS)
    with random_encoder(config) as made:
        yield made


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


def largest(encoder: TextEncoder, length: int, rows: int) -> int:
    with LargestTensor() as seen:
        encode(encoder, length, rows)
    return seen.elements


@pytest.mark.parametrize("rows", [MOST_ROWS, PART])
def test_memory_is_linear_in_the_length(encoder: TextEncoder, rows: int) -> None:
    short, long = (largest(encoder, length, rows) for length in LENGTHS)
    assert short < long <= 2 * short


@pytest.mark.parametrize(
    ("name", "rows"), [("_windowed", MOST_ROWS), ("_windowed", PART), ("_attend", MOST_ROWS)]
)
def test_a_layer_that_squares_the_length_is_seen(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch, name: str, rows: int
) -> None:
    """Layers with a window, or all of them, with all scores at once as the plain formula has them."""

    def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
        groups = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(groups, 1)) * others[-1]
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(groups, 1))
        return attended[others[0]] if isinstance(others[0], slice) else attended

    monkeypatch.setattr(bidirectional, name, naive)
    short, long = (largest(encoder, length, rows) for length in LENGTHS)
    assert long == 4 * short
