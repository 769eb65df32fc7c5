"""`python -m benchmarks.markov`: what picking a greedy DSpark block costs on this GPU, its logits once computed.

At the published shape (7 slots, 32 000 logits, rank 256), as one launch a slot and as four. Each call has a product's
weight of its own, more of them than the L2 cache holds.
"""

import argparse
from collections.abc import Callable

import torch

from benchmarks.attention.timing import graph_us, require_gpu
from plugin.drafts.kernels.triton_pick import pick, pick_block

SLOTS, VOCABULARY, DRAFT_VOCABULARY, RANK, COPIES = 7, 262_144, 32_000, 256, 6
REQUESTS = (1, 2, 4, 8, 16, 32)


def block_us(requests: int) -> dict[str, float]:
    """Microseconds a block of `requests`, by way."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")

    base, w1 = random(requests, SLOTS, DRAFT_VOCABULARY), random(VOCABULARY, RANK)
    anchors = torch.randint(0, VOCABULARY, (requests,), device="cuda")
    d2t = torch.zeros(DRAFT_VOCABULARY, dtype=torch.long, device="cuda")
    out = torch.zeros(requests, SLOTS, dtype=torch.long, device="cuda")

    def apart(w2: torch.Tensor) -> None:
        previous = anchors
        for slot in range(SLOTS):
            bias = torch.nn.functional.linear(w1[previous], w2)
            previous = pick(base[:, slot], bias, d2t)

    def calls(way: Callable[[torch.Tensor], None]) -> list[Callable[[], None]]:
        return [lambda w2=w2: way(w2) for w2 in weights]  # type: ignore[misc]

    weights = [random(DRAFT_VOCABULARY, RANK) for _ in range(COPIES)]
    return {
        "apart": graph_us(calls(apart)),
        "one launch a slot": graph_us(calls(lambda w2: pick_block(base, anchors, w1, w2, d2t, out))),
    }


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(prog="python -m benchmarks.markov", description=__doc__).parse_args()
    require_gpu()
    for requests in REQUESTS:
        ways = ", ".join(f"{way} {us:7.2f}" for way, us in block_us(requests).items())
        print(f"{requests:2} requests, microseconds a block: {ways}", flush=True)


if __name__ == "__main__":
    main()
