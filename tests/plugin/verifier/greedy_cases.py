"""Greedy verification under Triton's interpreter, a process of its own: prints by case whether all of it is right."""

import json
import sys
from itertools import pairwise

import torch

from plugin.verifier.triton_greedy import BLOCK, greedy

K = 3
# Name: drafts of each request, vocabulary. A graph's padding has no token at all, -1 drafts.
CASES = {
    "no drafts": ([0, 0, 0], 100),
    "as many drafts each": ([K, K, K, K, K, K], 100),
    "fewer drafts, and none": ([K, 1, 0, 2], 300),
    "more than one block": ([2, K], 2 * BLOCK + 77),
    "one request": ([K], 64),
    "padding behind": ([K, 0, 2, -1, -1], 100),
    "padding alone": ([-1, -1], 100),
}


def reference(logits, bounds, tokens, width):
    """Request by request: the tokens and how many, for logits of few different values."""
    sampled, counts = [], []
    for begin, end in pairwise(bounds):
        found = []
        for row in range(begin, end):
            found.append(int((logits[row] == logits[row].max()).int().argmax()))
            if row + 1 == end or found[-1] != tokens[row + 1]:
                break
        sampled.append(found + [-7] * (width - len(found)))
        counts.append(len(found))
    return torch.tensor(sampled), torch.tensor(counts)


def made(name, device, dtype, padding=0):
    """Logits with many ties, rows of `padding` behind them, and drafts most of which are right."""
    drafts, size = CASES[name]
    generator = torch.Generator().manual_seed(1)
    bounds = torch.tensor([0, *torch.tensor([1 + d for d in drafts]).cumsum(0).tolist()], dtype=torch.int32)
    rows = int(bounds[-1]) + padding
    logits = torch.randint(0, 40, (rows, size + 8), generator=generator).to(dtype)[:, :size]
    logits[0, 3:] = float("-inf")
    best = (logits == logits.max(dim=1, keepdim=True).values).int().argmax(dim=1)
    tokens = torch.cat((torch.zeros(1, dtype=torch.int64), best[:-1])).int()
    wrong = torch.rand(rows, generator=generator) < 0.3
    tokens[wrong] = torch.where(torch.arange(int(wrong.sum())) % 2 == 0, -1, 5).int()
    return logits.to(device), bounds.to(device), torch.cat((tokens, tokens)).to(device)


def is_right(name, device, dtype):
    logits, bounds, tokens = made(name, device, dtype, padding=2)
    width = max(1, 1 + max(CASES[name][0]))
    found = greedy(logits, bounds, tokens, width)
    out = tuple(torch.full_like(each, -9) for each in found)
    again = greedy(logits, bounds, tokens, width, out=out)
    if any(one is not other for one, other in zip(again, out, strict=True)):
        return False
    sampled, num_sampled, num_rejected = (each.cpu() for each in out)
    if not all(torch.equal(a.cpu(), b) for a, b in zip(found[1:], (num_sampled, num_rejected), strict=True)):
        return False
    want, counts = reference(logits.float().cpu(), bounds.tolist(), tokens.tolist(), width)
    lengths = torch.tensor([1 + d for d in CASES[name][0]])
    known = torch.arange(width)[None] < counts[:, None]
    return (
        torch.equal(sampled[known], want[known])
        and torch.equal(num_sampled, counts.int())
        and torch.equal(num_rejected, (lengths - counts).int())
    )


def accepts_by_rate(device):
    """Rates of 1 accept whatever is drafted but -1, rates of 0 nothing; the token behind is the logits' own.

    On a GPU only: the interpreter has no random numbers.
    """
    logits, bounds, tokens = made("fewer drafts, and none", device, torch.float32)
    rows = len(logits)
    positions, slots = torch.arange(rows, device=device), torch.arange(4, device=device)
    seeds = torch.tensor([5, -6, 1 << 40, 0], device=device)
    best = (logits == logits.max(dim=1, keepdim=True).values).int().argmax(dim=1).tolist()
    right = True
    for rate in (0.0, 1.0):
        rates = torch.full((K,), rate, device=device)
        sampled, num_sampled, _ = greedy(logits, bounds, tokens, 1 + K, (rates, positions, slots, seeds))
        for request, (begin, end) in enumerate(pairwise(bounds.tolist())):
            want, row = [], begin
            while rate and row + 1 < end and tokens[row + 1] >= 0:
                want.append(int(tokens[row + 1]))
                row += 1
            want.append(best[row])
            right &= sampled[request, : len(want)].tolist() == want and int(num_sampled[request]) == len(want)
    return right


def main() -> None:
    """Print one JSON object."""
    json.dump({name: is_right(name, "cpu", torch.float16) for name in CASES}, sys.stdout)


if __name__ == "__main__":
    main()
