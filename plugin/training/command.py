"""`t5gemma2 train`: its flags. What it does is imported only when it runs, so that help needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plugin.drafts.families import FAMILIES
from plugin.training.flags import add_device, add_family, positive


def add_train(commands: Any) -> None:
    """Adds `train` to the subparsers of the command line."""
    parser = commands.add_parser("train", help="train a draft, or the demo", allow_abbrev=False)
    targets = parser.add_subparsers(required=True, metavar="target", dest="target")
    for family in FAMILIES:
        text = f"train a {family} draft for a verifier"
        target = targets.add_parser(family, help=text, description=_HELP, allow_abbrev=False)
        add_family(target, family)
    text = "train the demo's verifier, a T5Gemma 2 of two million parameters"
    _add_verifier_demo(targets.add_parser("verifier-demo", help=text, allow_abbrev=False))
    text = "rebuild the whole demo: the verifier and a draft of each family"
    _add_demo(targets.add_parser("demo", help=text, description=text, allow_abbrev=False))
    parser.set_defaults(run=_run)


_HELP = (
    "Training goes on from the newest checkpoint in --out, if there is one; SIGTERM and Ctrl-C save one first. Exit"
    " codes: 0 trained, 1 failed, 2 wrong usage, 130 stopped by a signal."
)


def _add_verifier_demo(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    add(
        "--from", dest="start", type=Path, metavar="FOLDER", help="verifier to go on from, with its tokenizer"
    )
    _add_demo_shared(parser)


def _add_demo_shared(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--steps", type=positive, default=8000, help="of the verifier (default %(default)s)")
    text = "peak learning rate of the verifier (default %(default)s)"
    add("--verifier-rate", type=float, default=2e-3, metavar="X", help=text)
    add("--samples", type=positive, metavar="N", help="training problems (verifier 400000, draft 60000)")
    add("--evaluate", type=positive, default=500, metavar="N", help="fresh ones to measure on (500)")
    add("--batch", type=positive, default=512, metavar="N", help="samples or packed rows a step (512)")
    add("--seed", type=int, default=0, help="default %(default)s")
    add_device(add)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help="folder of the four folders")
    add(
        "--only", action="append", choices=("verifier", *FAMILIES), metavar="PART",
        help="build this one alone: verifier or a family; may be repeated",
    )  # fmt: skip
    text = "of the drafts, instead of building one (OUT/verifier)"
    add("--verifier", type=Path, metavar="FOLDER", help=text)
    add("--from", dest="start", type=Path, metavar="FOLDER", help="draft to go on from, with --only FAMILY")
    add(
        "--answers", choices=("verifier", "reference"), default="verifier",
        help="learn the verifier's own greedy answers (default), or the generator's, which take no time to make",
    )  # fmt: skip
    add("--epochs", type=positive, default=16, help="of a draft (default %(default)s)")
    add("--rate", type=float, default=2e-3, help="peak learning rate of a draft (default %(default)s)")
    add("--max-steps", type=positive, metavar="N", help="of a draft, if that is fewer")
    text = "share of blocks that are drawn shorter (default %(default)s)"
    add("--short-blocks", type=float, default=0.0, metavar="X", help=text)
    add("--anchors", type=positive, default=8, help="blocks a packed row of a draft (default %(default)s)")
    _add_demo_shared(parser)


def _run(arguments: argparse.Namespace) -> None:
    from plugin.training.demo.build import demo, demo_verifier
    from plugin.training.entry import guarded, train_family

    work = {"demo": demo, "verifier-demo": demo_verifier}.get(arguments.target, train_family)
    raise SystemExit(guarded(work, arguments))
