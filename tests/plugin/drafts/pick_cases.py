"""Greedy picking under Triton's interpreter, a process of its own: prints by case whether all ids are right."""

import json
import sys

import torch

from plugin.drafts.kernels.triton_pick import MAX_BLOCK, pick

# Name: rows, vocabulary, with a bias, with a mapping.
CASES = {
    "plain": (3, 100, False, False),
    "a bias and a mapping": (4, 1000, True, True),
    "more than one block": (2, MAX_BLOCK + 777, False, True),
    "one row": (1, 64, True, False),
}


def is_right(name: str, device: str, dtype: torch.dtype) -> bool:
    """Equal logits, which 16-bit rounding makes often, and rows of `-inf` among them."""
    rows, size, biased, mapped = CASES[name]
    torch.manual_seed(0)
    # Every other row of a wider tensor, as the logits of one slot are.
    logits = torch.randn(2 * rows, size + 16, device=device).to(dtype)[::2, :size]
    logits[0, 5:] = float("-inf")
    bias = torch.randn(rows, size, device=device).to(dtype) if biased else None
    d2t = torch.randint(0, 1000, (size,), device=device) if mapped else None
    biggest = (logits if bias is None else logits + bias).float()
    # The first of the largest, which torch's argmax on the CPU does not promise.
    ids = (biggest == biggest.max(dim=1, keepdim=True).values).int().argmax(dim=1)
    want = ids if d2t is None else ids + d2t[ids]
    return torch.equal(pick(logits, bias, d2t), want)


def main() -> None:
    """Print one JSON object."""
    json.dump({name: is_right(name, "cpu", torch.float16) for name in CASES}, sys.stdout)


if __name__ == "__main__":
    main()
