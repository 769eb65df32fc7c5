"""The encoder prompts of the engine tests: seeded ids of lengths below, at and above the sliding window."""

from __future__ import annotations

import random

from tests.reference.tiny import BOS, END_OF_IMAGE, TOKENIZER_SIZE, WINDOW


def prompt_ids(length: int, seed: int) -> tuple[int, ...]:
    """`length` encoder ids that begin with <bos>; one id in about forty is the end-of-image token (its own row)."""
    rng = random.Random(1_000_003 * seed + length)
    body = (
        END_OF_IMAGE if rng.random() < 0.025 else rng.randrange(7, TOKENIZER_SIZE) for _ in range(length - 1)
    )
    return (BOS, *body)


def mixed_prompts(count: int = 50) -> list[tuple[int, ...]]:
    """`count` prompts whose lengths go below, at and above the window, up to a few hundred tokens."""
    edges = [
        1,
        2,
        3,
        WINDOW - 1,
        WINDOW,
        WINDOW + 1,
        2 * WINDOW,
        2 * WINDOW + 1,
        31,
        32,
        33,
        63,
        64,
        65,
        127,
        128,
    ]
    rng = random.Random(7)
    lengths = edges + [rng.randrange(3, 300) for _ in range(max(0, count - len(edges)))]
    return [prompt_ids(length, seed) for seed, length in enumerate(lengths[:count])]
