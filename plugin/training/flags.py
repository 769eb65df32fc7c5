"""The flags of `t5gemma2 train <family>`, which the demo's drafts are trained with, too. Imports no torch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_args

from plugin.drafts.families import FAMILIES, MARKOV_HEAD_TYPES, LossName
from plugin.training.settings import DraftSettings, LossSettings, Schedule, loss_terms


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
    parser.set_defaults(target=family)
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
    text = (
        "with --from: that draft learned from an earlier state of the verifier, whose embedding is replaced"
    )
    add("--new-verifier", action="store_true", help=text)
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
    _add_publishing(parser)
    add = parser.add_argument_group("run").add_argument
    text = "steps between checkpoints in mid-epoch (default: none but at a signal)"
    add("--save-every", type=positive, metavar="N", help=text)
    add("--keep", type=positive, metavar="N", help="epochs to keep beside the best (default all)")
    text = "steps between looks at the loss (default 1, on CUDA 10)"
    add("--log-every", type=positive, metavar="N", help=text)
    add("--no-tensorboard", action="store_true", help="write no TensorBoard events")
    text = "also log to wandb, trackio, mlflow, comet_ml, ...: a tracker of the package accelerate; may be repeated"
    add("--tracker", action="append", default=[], metavar="NAME", help=text)
    add_device(add)


SHAPE_FLAGS: Final = {
    "num_hidden_layers": "--layers",
    "intermediate_size": "--mlp-width",
    "aux_hidden_state_layer_ids": "--aux-layers",
    "draft_vocab_size": "--draft-vocab",
    "block_size": "--block-size",
    "mask_token_id": "--mask-token-id",
    "sliding_layers": "--sliding-layers",
    "sliding_window": "--sliding-window",
    "sliding_window_non_causal": "--sliding-non-causal",
    "markov_rank": "--markov-rank",
    "markov_head_type": "--markov-head",
    "enable_confidence_head": "--no-confidence-head",
    "confidence_head_with_markov": "--confidence-without-markov",
    "sample_from_anchor": "--sample-from-anchor",
}
"""The fields of a draft's config that flags set, and which; a field that was not asked for is None."""


def _add_shape(parser: argparse.ArgumentParser, family: str) -> None:
    title = "defaults: the published shape, scaled to the verifier's depth"
    group = parser.add_argument_group("draft", title)
    parser.set_defaults(**dict.fromkeys(SHAPE_FLAGS))

    def add(field: str, text: str, **options: Any) -> None:
        group.add_argument(SHAPE_FLAGS[field], dest=field, help=text, **options)

    count: dict[str, Any] = {"type": positive, "metavar": "N"}
    layers: dict[str, Any] = {"type": _layers, "metavar": "LIST"}
    add("num_hidden_layers", "layers of the draft (5, dflare 6, of a 1B verifier)", **count)
    add("intermediate_size", "width of its feed-forward (the verifier's)", **count)
    add("aux_hidden_state_layer_ids", "decoder layers it reads, 0-based: 2,7,13,18,21", **layers)
    add("draft_vocab_size", "most frequent tokens it can say (32000)", **count)
    text = "tokens it can say: a draft's .safetensors, .npy, .pt or .json (default: counted in the responses)"
    group.add_argument("--vocab-file", type=Path, metavar="FILE", help=text)
    add("block_size", "1 + K (8)", **count)
    add("mask_token_id", "token of a slot to fill (default: the tokenizer's mask)", type=int, metavar="ID")
    add("sliding_layers", "layers of the draft, 0-based, that see a window alone (none)", **layers)
    add("sliding_window", "tokens of that window (2048)", **count)
    text = "let such a layer see its block in both directions"
    add("sliding_window_non_causal", text, action="store_const", const=True)
    if "markov_rank" in FAMILIES[family].own_keys:
        add("markov_rank", "width of the Markov head's embedding (256)", **count)
        add("markov_head_type", "kind of Markov head (vanilla)", choices=MARKOV_HEAD_TYPES)
        add("enable_confidence_head", "train no confidence head", action="store_const", const=False)
        text = "let the confidence head see the state alone"
        add("confidence_head_with_markov", text, action="store_const", const=False)
        text = (
            "predict from the anchor's slot on, each slot the token after its own: K is then the block size"
        )
        add("sample_from_anchor", text, action="store_const", const=True)


def _loss(text: str) -> tuple[tuple[LossName, float], ...]:
    try:
        return loss_terms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("recipe", "defaults: the published one").add_argument
    for part in (*fields(DraftSettings), *fields(LossSettings)):
        if text := part.metadata.get("help"):
            flag = part.metadata["flag"] or f"--{part.name.replace('_', '-')}"
            kind = part.metadata["kind"]
            text = text if part.default is None else f"{text} (default %(default)s)"
            metavar = "N" if kind is int else "X"
            add(flag, dest=part.name, type=kind, default=part.default, metavar=metavar, help=text)
    add(
        "--loss", dest="terms", type=_loss, default=(), metavar="SPEC",
        help="kl, ce, tv, nla or lk_hybrid, or weights as in '{\"ce\": 0.1, \"tv\": 0.9}'"
        f" (default {json.dumps(dict(FAMILIES[parser.get_default('target')].loss))})",
    )  # fmt: skip
    add(
        "--schedule", choices=get_args(Schedule), default="linear",
        help="how the rate falls after the warm-up (default %(default)s)",
    )  # fmt: skip
    add("--whole-blocks", action="store_true", help="no anchors in a response's last block, as published")
    add(
        "--precision", choices=("bfloat16", "float32"),
        help="of the draft's arithmetic; master weights are float32 (default: bfloat16 on CUDA, else float32)",
    )  # fmt: skip
    text = "compute a layer's inner values again instead of keeping them: less memory, more time"
    add("--gradient-checkpointing", action="store_true", help=text)


def _add_publishing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("publishing").add_argument
    text = "what config.json and card call the verifier: a hub id or a path (default: as given, absolute)"
    add("--verifier-name", metavar="NAME", help=text)
    add("--license", metavar="ID", help="licence on the card (default: the verifier's, if its card says one)")
    text = "upload checkpoint_best to this repository of the hub when the run is done"
    add("--push-to-hub", metavar="OWNER/NAME", help=text)
    add("--private", action="store_true", help="make that repository a private one")


def family_arguments(family: str, words: Sequence[str]) -> argparse.Namespace:
    """The flags of `t5gemma2 train <family>` as that command reads them from `words`."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_family(parser, family)
    return parser.parse_args(words)


def add_device(add: Any) -> None:
    """Adds `--device` by the `add_argument` of a parser or of a group."""
    add("--device", metavar="NAME", help="default cuda where there is one, else cpu")
