"""`t5gemma2 train`: its flags. What it does is imported only when it runs, so that help needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plugin.drafts.families import FAMILIES


def add_train(commands: Any) -> None:
    """Adds `train` to the subparsers of the command line."""
    parser = commands.add_parser("train", help="train a draft, or the demo", allow_abbrev=False)
    targets = parser.add_subparsers(required=True, metavar="target", dest="target")
    for family in FAMILIES:
        text = f"train a {family} draft for a verifier"
        _add_family(targets.add_parser(family, help=text, description=_FAMILY_HELP, allow_abbrev=False))
    text = "train the demo's verifier, a T5Gemma 2 of two million parameters"
    _add_verifier_demo(targets.add_parser("verifier-demo", help=text, allow_abbrev=False))
    text = "rebuild the whole demo: the verifier and a draft of each family"
    _add_demo(targets.add_parser("demo", help=text, description=text, allow_abbrev=False))


_FAMILY_HELP = (
    "Training goes on from the newest checkpoint in --out, if there is one; SIGTERM and Ctrl-C save one first. Exit"
    " codes: 0 trained, 1 failed, 2 wrong usage, 130 stopped by a signal."
)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no comma list of layer numbers") from None


def _add_family(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--verifier", required=True, metavar="CHECKPOINT", help="the frozen verifier: a folder or a hub id")
    add(
        "--data", action="append", required=True, metavar="PLACE",
        help="a JSONL file with prompt/response or messages, demo:N, hf:DATASET or a mixture; may be repeated",
    )  # fmt: skip
    add(
        "--chat-template", action="store_true",
        help="make prompts of `messages` by the verifier's chat template instead of `User: ...` lines",
    )  # fmt: skip
    add("--out", type=Path, required=True, metavar="FOLDER", help="the run folder, made or gone on from")
    add("--fresh", action="store_true", help="refuse a run folder that holds checkpoints instead of going on")
    add("--from", dest="start", type=Path, metavar="FOLDER", help="draft whose weights a new run starts with")
    add(
        "--responses", choices=("data", "verifier"), default="data",
        help="learn from the data's responses (default) or from the verifier's own greedy answers to the data's"
        " prompts, which take time to make and give the best acceptance",
    )  # fmt: skip
    add(
        "--max-new-tokens", type=_positive, metavar="N", help="of such an answer (default: --response-length)"
    )
    _add_shape(parser)
    _add_recipe(parser)
    group = parser.add_argument_group("run")
    group.add_argument(
        "--save-every",
        type=_positive,
        metavar="N",
        help="steps between checkpoints in mid-epoch (default: none but at a signal)",
    )
    group.add_argument(
        "--keep", type=_positive, metavar="N", help="epochs to keep beside the best (default all)"
    )
    group.add_argument(
        "--log-every", type=_positive, metavar="N",
        help="steps between looks at the loss (default 1, on CUDA 10)",
    )  # fmt: skip
    group.add_argument("--no-tensorboard", action="store_true", help="write no TensorBoard events")
    _add_device(group)
    parser.set_defaults(run=_run_family)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "draft", "defaults: the published shape, scaled to the verifier's depth"
    ).add_argument
    add("--layers", type=_positive, metavar="N", help="layers of the draft (5, dflare 6, of a 1B verifier)")
    add("--aux-layers", type=_layers, metavar="LIST", help="decoder layers it reads, 0-based: 2,7,13,18,21")
    add("--draft-vocab", type=_positive, metavar="N", help="most frequent tokens it can say (32000)")
    add("--block-size", type=_positive, metavar="N", help="1 + K (8)")
    add(
        "--mask-token-id",
        type=int,
        metavar="ID",
        help="token of a slot to fill (default: the tokenizer's mask)",
    )


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("recipe", "defaults: the published one").add_argument
    add("--epochs", type=int, default=6, metavar="N", help="default %(default)s")
    add("--rate", type=float, default=6e-4, metavar="X", help="peak learning rate (default %(default)s)")
    add("--warmup", type=float, default=0.01, metavar="X", help="fraction of all steps (default %(default)s)")
    add("--weight-decay", type=float, default=0.01, metavar="X", help="of AdamW (default %(default)s)")
    add("--clip", type=float, default=1.0, metavar="X", help="largest gradient norm (default %(default)s)")
    add("--noise", type=float, default=0.05, metavar="X", help="on the aux states (default %(default)s)")
    add("--anchors", type=int, default=256, metavar="N", help="blocks a packed row (default %(default)s)")
    add(
        "--gamma",
        type=float,
        default=4.0,
        metavar="X",
        help="slots of the weights' decay (default %(default)s)",
    )
    add("--rows", type=int, default=1, metavar="N", help="packed rows a micro-batch (default %(default)s)")
    add("--accumulate", type=int, default=1, metavar="N", help="micro-batches a step (default %(default)s)")
    add(
        "--total-length",
        type=int,
        default=2048,
        metavar="N",
        help="tokens a packed row (default %(default)s)",
    )
    add(
        "--prompt-length",
        type=int,
        default=2048,
        metavar="N",
        help="encoder cut, tokens (default %(default)s)",
    )
    add("--response-length", type=int, default=1024, metavar="N", help="decoder cut (default %(default)s)")
    add(
        "--extractor-batch", type=int, default=4, metavar="N",
        help="samples that the verifier reads at a time (default %(default)s)",
    )  # fmt: skip
    add("--whole-blocks", action="store_true", help="no anchors in a response's last block, as published")
    add(
        "--train-fraction", type=float, default=0.9, metavar="X",
        help="of the samples; the others validate (default %(default)s)",
    )  # fmt: skip
    add("--seed", type=int, default=42, metavar="N", help="of data, weights and draws (default %(default)s)")
    add(
        "--precision", choices=("bfloat16", "float32"),
        help="of the draft's arithmetic; master weights are float32 (default: bfloat16 on CUDA, else float32)",
    )  # fmt: skip


def _add_device(parser: Any) -> None:
    parser.add_argument("--device", metavar="NAME", help="default cuda where there is one, else cpu")


def _add_verifier_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    _add_verifier_size(parser)
    _add_demo_shared(parser)
    parser.set_defaults(run=_run_verifier_demo)


def _add_verifier_size(parser: Any) -> None:
    parser.add_argument("--steps", type=_positive, default=8000, help="of the verifier (default %(default)s)")


def _add_demo_shared(parser: Any) -> None:
    add = parser.add_argument
    add("--samples", type=_positive, metavar="N", help="training problems (verifier 400000, draft 60000)")
    add("--evaluate", type=_positive, default=500, metavar="N", help="fresh ones to measure on (500)")
    add("--batch", type=_positive, default=512, metavar="N", help="samples or packed rows a step (512)")
    add("--seed", type=int, default=0, help="default %(default)s")
    _add_device(parser)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help="folder of the four folders")
    add(
        "--only", action="append", choices=("verifier", *FAMILIES), metavar="PART",
        help="build this one alone: verifier or a family; may be repeated",
    )  # fmt: skip
    add(
        "--verifier",
        type=Path,
        metavar="FOLDER",
        help="of the drafts, instead of building one (OUT/verifier)",
    )
    add("--from", dest="start", type=Path, metavar="FOLDER", help="draft to go on from, with --only FAMILY")
    add(
        "--answers", choices=("verifier", "reference"), default="verifier",
        help="learn the verifier's own greedy answers (default), or the generator's, which take no time to make",
    )  # fmt: skip
    add("--epochs", type=_positive, default=16, help="of a draft (default %(default)s)")
    add("--rate", type=float, default=2e-3, help="peak learning rate of a draft (default %(default)s)")
    add("--anchors", type=_positive, default=8, help="blocks a packed row of a draft (default %(default)s)")
    _add_verifier_size(parser)
    _add_demo_shared(parser)
    parser.set_defaults(run=_run_demo)


def _run_family(arguments: argparse.Namespace) -> None:
    from plugin.training.entry import guarded, train_family

    raise SystemExit(guarded(train_family, arguments))


def _run_verifier_demo(arguments: argparse.Namespace) -> None:
    from plugin.training.demo.build import demo_verifier
    from plugin.training.entry import guarded

    raise SystemExit(guarded(demo_verifier, arguments))


def _run_demo(arguments: argparse.Namespace) -> None:
    from plugin.training.demo.build import demo
    from plugin.training.entry import guarded

    raise SystemExit(guarded(demo, arguments))
