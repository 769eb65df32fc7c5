"""The reduced draft vocabulary: the most frequent response tokens, and the two tables that lead to and fro.

It can also come from a file, so that drafts trained on different data have one vocabulary.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open


def draft_vocabulary(
    responses: Iterable[Sequence[int]], vocabulary_size: int, draft_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(t2d, d2t) of the `draft_size` most frequent tokens of `responses`; ties and fillers by the lower id.

    `t2d` is bool [vocabulary_size], true for tokens that the draft can say; `d2t` is int64 [draft_size], and draft id
    i stands for target id i + d2t[i]. Raises `ValueError` when the draft vocabulary would exceed the target's.
    """
    if not 0 < draft_size <= vocabulary_size:
        raise ValueError(f"draft_vocab_size: {draft_size} is not between 1 and vocab_size {vocabulary_size}")
    counts = Counter(token for response in responses for token in response)
    return vocabulary_tables(_most_frequent(counts, vocabulary_size, draft_size), vocabulary_size)


def vocabulary_tables(tokens: Sequence[int], vocabulary_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(t2d, d2t), as `draft_vocabulary` gives them, of exactly these `tokens`, ascending."""
    kept = torch.tensor(tokens, dtype=torch.long)
    t2d = torch.zeros(vocabulary_size, dtype=torch.bool)
    t2d[kept] = True
    return t2d, kept - torch.arange(len(kept))


def _most_frequent(counts: Mapping[int, int], vocabulary_size: int, draft_size: int) -> list[int]:
    ranked = sorted(range(vocabulary_size), key=lambda token: (-counts.get(token, 0), token))
    return sorted(ranked[:draft_size])


def read_vocabulary(file: Path, vocabulary_size: int, draft_size: int | None = None) -> list[int]:
    """The tokens, ascending, that `file` names: the most frequent `draft_size`, where it holds counts.

    A `.safetensors` file is a draft's weights, whose `t2d` is taken; `.npy` is such a table alone; `.pt` is one under
    the name `t2d` or, as `speculators` writes them, counts by token; `.json` a list of tokens or an object of counts.
    Raises `ValueError` naming the file and what is wrong with it.
    """
    try:
        found = _tokens_or_counts(file)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{file}: no vocabulary can be read: {' '.join(str(error).split())[:160]}") from None
    if isinstance(found, Mapping):
        if draft_size is None:
            raise ValueError(f"{file}: holds counts; give --draft-vocab, too")
        found = _most_frequent(
            {int(token): int(n) for token, n in found.items()}, vocabulary_size, draft_size
        )
    tokens = sorted({int(token) for token in found})
    if not tokens or not 0 <= tokens[0] <= tokens[-1] < vocabulary_size:
        raise ValueError(f"{file}: its tokens are not some of 0 ... {vocabulary_size - 1}")
    if draft_size is not None and len(tokens) != draft_size:
        raise ValueError(f"{file}: names {len(tokens)} tokens, --draft-vocab is {draft_size}")
    return tokens


def _tokens_or_counts(file: Path) -> Any:
    if file.suffix == ".json":
        return json.loads(file.read_text())
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as tensors:
            table = tensors.get_tensor("t2d")
    elif file.suffix == ".npy":
        table = torch.from_numpy(np.load(file))
    elif file.suffix == ".pt":
        found = torch.load(file, weights_only=True)
        if "t2d" not in found:
            return found
        table = found["t2d"]
    else:
        raise ValueError("its name ends in none of .safetensors, .npy, .pt, .json")
    return table.nonzero().flatten().tolist() if table.dtype == torch.bool else table.tolist()
