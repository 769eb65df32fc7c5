"""`python -m plugin.training.data.problems.write --count 200 --seed 0`: problems as JSONL on standard output.

For programs that want the demo's questions without importing the training code, as the benchmark does. By
default they come from the split that no model of the demo was trained on.
"""

from __future__ import annotations

import argparse
import json

from plugin.training.data.problems.generate import take


def main() -> None:
    """One object a line: prompt, answer, kind."""
    parser = argparse.ArgumentParser(
        prog="python -m plugin.training.data.problems.write", description=__doc__
    )
    parser.add_argument("--count", type=int, required=True, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same problems")
    parser.add_argument("--split", choices=("fresh", "train"), default="fresh", help="default %(default)s")
    arguments = parser.parse_args()
    for problem in take(arguments.seed, arguments.split, arguments.count):
        row = {"prompt": problem.question, "answer": problem.answer, "kind": problem.kind}
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
