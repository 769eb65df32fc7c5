"""What of our uses of vLLM another version has changed. Exit code 1 where something would break.

Every import, every attribute of which the class can be told, every call, subclass and override in `app`, `plugin` and
`benchmarks`, every hook of both runners and every hidden log line is looked up in the installed vLLM and in the other
one's sources. `body changed` breaks nothing that can be read off: somebody has to read it. Nothing of the other
version is imported or installed.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.next_vllm.our_uses import hook_uses, read_uses
from benchmarks.next_vllm.source_tree import SourceTree
from benchmarks.next_vllm.verdicts import Verdict, judge
from benchmarks.next_vllm.wheel import CACHE, WheelError, sources

NEXT = "0.33.0"


def installed() -> Path:
    """The folder in which the installed vLLM stands."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def installed_version() -> str:
    """Of whichever build is there."""
    from vllm import __version__

    return str(__version__)


def compare(other: Path) -> list[Verdict]:
    """The verdicts about the vLLM in the folder `other`, against the installed one."""
    here = installed()
    uses, elsewhere = read_uses(here)
    return judge([*uses, *hook_uses()], SourceTree({"vllm": here}), SourceTree({"vllm": other}), elsewhere)


def table(verdicts: Sequence[Verdict], every: bool) -> str:
    """One line for each verdict that is not "same", what breaks first, and how many there are of each."""
    shown = [one for one in verdicts if every or one.status != "same"]
    shown.sort(key=lambda one: (not one.breaks, one.status, one.use.module, one.use.path))
    rows = [
        (
            "BREAKS" if one.breaks else "",
            one.status,
            one.use.kind,
            ".".join((one.use.module, *one.use.path)),
            one.use.where,
            one.detail,
        )
        for one in shown
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(5)]
    lines = [
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[5]])
        for row in rows
    ]
    counts = Counter(one.status for one in verdicts)
    return "\n".join([*lines, ", ".join(f"{status} {n}" for status, n in counts.most_common())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.next_vllm", description=__doc__)
    parser.add_argument("vllm", nargs="?", default=NEXT, help=f"a version or a wheel's file; default {NEXT}")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"where sources are kept; default {CACHE}")
    parser.add_argument("--all", action="store_true", help="show what is the same, too")
    args = parser.parse_args(arguments)
    try:
        other = sources(args.vllm, args.cache)
    except WheelError as error:
        print(error, file=sys.stderr)
        return 2
    verdicts = compare(other)
    print(table(verdicts, args.all))
    broken = sum(one.breaks for one in verdicts)
    found = f"{broken} of our uses break" if broken else "nothing breaks that can be read off"
    print(f"vLLM {installed_version()} -> {args.vllm}: {found}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
