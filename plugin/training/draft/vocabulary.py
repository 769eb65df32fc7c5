"""The reduced draft vocabulary: the most frequent response tokens, and the two tables that lead to and fro."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch


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
    ranked = sorted(range(vocabulary_size), key=lambda token: (-counts[token], token))
    kept = torch.tensor(sorted(ranked[:draft_size]), dtype=torch.long)
    t2d = torch.zeros(vocabulary_size, dtype=torch.bool)
    t2d[kept] = True
    return t2d, kept - torch.arange(draft_size)
