"""Greedy DSpark blocks under Triton's interpreter, a process of its own: prints by case whether tokens are right."""

import json
import sys

import torch

from plugin.drafts.kernels.triton_pick import BLOCK_V, pick_block, serves

VOCABULARY = 3000
# Name: requests, K, draft vocabulary, rank, mapped to the verifier's.
CASES = {
    "one request": (1, 7, 2 * BLOCK_V, 64, True),
    "an odd vocabulary": (3, 3, 2 * BLOCK_V + 77, 16, True),
    "the verifier's own vocabulary": (2, 2, VOCABULARY, 32, False),
    "one slot": (5, 1, BLOCK_V, 16, True),
    "many requests": (13, 2, BLOCK_V + 1, 16, True),
}


def reference(
    base: torch.Tensor, anchors: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, d2t: torch.Tensor | None
) -> torch.Tensor:
    """Slot by slot, with the roundings of a product and a sum apart; of equal logits the first."""
    tokens, previous = [], anchors.long()
    for k in range(base.shape[1]):
        bias = (w1[previous].float() @ w2.float().T).to(base.dtype)
        logits = (base[:, k] + bias).float()
        ids = (logits == logits.max(dim=1, keepdim=True).values).int().argmax(dim=1)
        previous = ids if d2t is None else ids + d2t[ids]
        tokens.append(previous)
    return torch.stack(tokens, dim=1)


def is_right(name: str, device: str, dtype: torch.dtype, *, forget_bias: bool = False) -> bool:
    """Weights are eighths and few, so that every product is exact and many logits are equal."""
    rows, steps, size, rank, mapped = CASES[name]
    generator = torch.Generator().manual_seed(0)

    def eighths(*shape: int) -> torch.Tensor:
        return (torch.randint(-8, 9, shape, generator=generator) / 8).to(device, dtype)

    base = eighths(rows, steps, size + 16)[:, :, :size]
    base[0, 0, 5:] = float("-inf")
    w1, w2 = eighths(VOCABULARY, rank), eighths(size, rank)
    anchors = torch.randint(0, VOCABULARY, (rows, 2), generator=generator, dtype=torch.int32).to(device)[:, 0]
    d2t = None
    if mapped:
        places = torch.randperm(VOCABULARY, generator=generator)[:size].sort().values
        d2t = (places - torch.arange(size)).to(device)
    out = torch.full((rows, steps + 1), -7, device=device)
    assert serves(base, w2)
    pick_block(base, anchors, w1 * 0 if forget_bias else w1, w2, d2t, out[:, :steps])
    return bool(
        torch.equal(out[:, :steps], reference(base, anchors, w1, w2, d2t)) and (out[:, steps] == -7).all()
    )


def main() -> None:
    """Print one JSON object."""
    found = {name: is_right(name, "cpu", torch.float16) for name in CASES}
    found["control"] = is_right("one request", "cpu", torch.float16, forget_bias=True)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
