"""The flags of `t5gemma2 train <family>`, which the demo's drafts are trained with, too. Imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from plugin.drafts.families import FAMILIES
from plugin.training.settings import DraftSettings, LossSettings


def positive(text: str) -> int:
    """An argument that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no comma list of layer numbers") from None


class _Responses(argparse.Action):
    """A server's address means the verifier's responses, too: who makes them is another matter."""

    def __call__(
        self, parser: argparse.ArgumentParser, space: argparse.Namespace, text: Any, _: Any = None
    ) -> None:
        given = text.startswith(("http://", "https://"))
        if not given and text not in ("data", "verifier"):
            parser.error(f"argument --responses: {text!r} is neither data nor verifier nor a http:// address")
        space.responses_server = text if given else None
        space.responses = "verifier" if given else text


def add_family(parser: argparse.ArgumentParser, family: str) -> None:
    """Adds them all."""
    add = parser.add_argument
    add("--verifier", required=True, metavar="CHECKPOINT", help="the frozen verifier: a folder or a hub id")
    add(
        "--data", action="append", required=True, metavar="SOURCE",
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
        "--responses", action=_Responses, default="data", metavar="data|verifier|URL",
        help="learn from the data's responses (default), or from the verifier's own greedy answers to the data's"
        " prompts, which vLLM makes here or a running server at URL; these give the best acceptance",
    )  # fmt: skip
    parser.set_defaults(responses_server=None)
    add("--responses-file", type=Path, metavar="FILE", help="keeps such answers (OUT/responses.jsonl)")
    add("--max-new-tokens", type=positive, metavar="N", help="of such an answer (default: --response-length)")
    _add_shape(parser, family)
    _add_recipe(parser)
    add = parser.add_argument_group("run").add_argument
    text = "steps between checkpoints in mid-epoch (default: none but at a signal)"
    add("--save-every", type=positive, metavar="N", help=text)
    add("--keep", type=positive, metavar="N", help="epochs to keep beside the best (default all)")
    text = "steps between looks at the loss (default 1, on CUDA 10)"
    add("--log-every", type=positive, metavar="N", help=text)
    add("--no-tensorboard", action="store_true", help="write no TensorBoard events")
    add_device(add)


def _add_shape(parser: argparse.ArgumentParser, family: str) -> None:
    title = "defaults: the published shape, scaled to the verifier's depth"
    add = parser.add_argument_group("draft", title).add_argument
    add("--layers", type=positive, metavar="N", help="layers of the draft (5, dflare 6, of a 1B verifier)")
    add("--aux-layers", type=_layers, metavar="LIST", help="decoder layers it reads, 0-based: 2,7,13,18,21")
    add("--draft-vocab", type=positive, metavar="N", help="most frequent tokens it can say (32000)")
    add("--block-size", type=positive, metavar="N", help="1 + K (8)")
    text = "token of a slot to fill (default: the tokenizer's mask)"
    add("--mask-token-id", type=int, metavar="ID", help=text)
    parser.set_defaults(markov_rank=None)
    if "markov_rank" in FAMILIES[family].own_keys:
        add("--markov-rank", type=positive, metavar="N", help="width of the Markov head's embedding (256)")


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("recipe", "defaults: the published one").add_argument
    for part in (*fields(DraftSettings), *fields(LossSettings)):
        if text := part.metadata.get("help"):
            flag = part.metadata["flag"] or f"--{part.name.replace('_', '-')}"
            kind, text = type(part.default), f"{text} (default %(default)s)"
            metavar = "N" if kind is int else "X"
            add(flag, dest=part.name, type=kind, default=part.default, metavar=metavar, help=text)
    add("--whole-blocks", action="store_true", help="no anchors in a response's last block, as published")
    add(
        "--precision", choices=("bfloat16", "float32"),
        help="of the draft's arithmetic; master weights are float32 (default: bfloat16 on CUDA, else float32)",
    )  # fmt: skip


def family_arguments(family: str, words: Sequence[str]) -> argparse.Namespace:
    """The flags of `t5gemma2 train <family>` as that command reads them from `words`."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.set_defaults(target=family)
    add_family(parser, family)
    return parser.parse_args(words)


def add_device(add: Any) -> None:
    """Adds `--device` by the `add_argument` of a parser or of a group."""
    add("--device", metavar="NAME", help="default cuda where there is one, else cpu")
