"""The changed programs under Triton's interpreter, a process of its own: prints the errors as JSON.

The interpreter does not overlap launches, and forgets about caches: what is on trial must give the same product.
"""

import json
import sys

import torch

from benchmarks.linear import programs
from benchmarks.linear.ways import Trial, Way
from plugin.projection import few_tokens
from plugin.projection.triton_linear import Cut
from tests.plugin.projection.few_tokens_cases import operands, reference, relative

SHAPES = {"": (48, 384), "gelu": (64, 128)}


def error(name: str, act: str, splits: int, tokens: int) -> float:
    """Of the product with one change."""
    outputs, inputs = SHAPES[act]
    x, weight = operands(tokens, outputs, inputs, "cpu", torch.float16)
    got = programs.projection(name).project(x, weight, Cut(16, 64, 1, splits=splits), act)
    return relative(got, reference(x, weight, act))


def way_error(let_in: bool) -> float:
    """Of the product by the op, with a trial for its shape."""
    outputs, inputs = SHAPES[""]
    x, weight = operands(3, outputs, inputs, "cpu", torch.float16)
    way = Way(trials={(outputs, inputs): Trial(Cut(16, 64, 0, splits=3), ("weights left",))}, let_in=let_in)
    got = way.of(lambda: few_tokens.linear_op(x, weight))()
    assert isinstance(got, torch.Tensor)
    return relative(got, reference(x, weight, ""))


def main() -> None:
    """Print one JSON object: the error by change and by case."""
    found = {
        name: {
            "whole": error(name, "", 1, 5),
            "in shares": error(name, "", 3, 5),
            "32 tokens": error(name, "", 2, 32),
            "gated": error(name, "gelu", 1, 3),
        }
        for name in programs.CHANGES
    }
    found["ways"] = {"as they are": way_error(False), "let in early": way_error(True)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
