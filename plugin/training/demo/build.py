"""Builds the bundled demo, `plugin/demo/`: the tiny verifier and a draft of each family.

    t5gemma2 train demo --out plugin/demo
    t5gemma2 train demo --only dflash --out plugin/demo
    t5gemma2 train verifier-demo --from plugin/demo/verifier --out plugin/demo/verifier

Problems are asked bare and as the published benchmarks ask them. A verifier or a draft can be trained further with
--from FOLDER. Runs on CUDA where there is any, else on the CPU (hours instead of minutes; --steps, --samples and
--max-steps make it shorter). How the bundled ones were made is in the train_command.txt beside each.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoTokenizer, T5Gemma2ForConditionalGeneration

from plugin.drafts.families import FAMILIES
from plugin.training.data.pairs import Pair
from plugin.training.data.problems.generate import (
    PUBLISHED_QUESTIONS,
    WRAPPINGS,
    Problem,
    take,
    wrapped,
)
from plugin.training.data.samples import Sample, encode
from plugin.training.demo import tokenizer as vocabulary
from plugin.training.demo.tiny_verifier import MAX_POSITIONS, VerifierSettings, train_verifier
from plugin.training.device import training_device
from plugin.training.draft.checkpoint import load_draft, save_draft, write_json
from plugin.training.draft.model import TrainableDraft
from plugin.training.entry import train_family
from plugin.training.flags import family_arguments
from plugin.training.run.checkpoint import TRAIN_COMMAND, train_command
from plugin.training.run.evaluation import serving_acceptance
from plugin.training.run.folder import TRAINING_STATE, VAL_METRICS, Checkpoint, RunFolder
from plugin.training.run.stop import Interrupted
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.frozen_verifier import FrozenVerifier
from plugin.training.verifier.greedy import greedy_responses

logger = logging.getLogger(__name__)

MARKOV_RANK: Final = 32
DRAFT_VOCABULARY_SIZE: Final = 320
MAX_NEW_TOKENS: Final = 96
TOTAL_LENGTH: Final = 128
"""Of a packed row, tokens: room for one response and some of the shorter ones, since attention costs by the row."""
TRAIN_FRACTION: Final = 0.99
TOKENIZER_TEXTS: Final = 20_000
VERIFIER_SAMPLES: Final = 400_000
DRAFT_SAMPLES: Final = 60_000


def build_verifier(arguments: argparse.Namespace, out: Path, start: Path | None = None) -> None:
    """Trains the tokenizer and the verifier into `out`, or trains the one in `start` further."""
    device = training_device(arguments.device)
    earlier = (start / TRAIN_COMMAND).read_text() if start else None
    problems = take(arguments.seed, "train", arguments.samples or VERIFIER_SAMPLES)
    pairs = [Pair(wrapped(one.question, number), one.answer) for number, one in enumerate(problems)]
    begun = None
    if start:
        tokenizer = AutoTokenizer.from_pretrained(start)
        begun = FrozenVerifier.load(str(start), torch.device("cpu")).model.float().requires_grad_(True)
    else:
        texts = (text for pair in pairs[:TOKENIZER_TEXTS] for text in (pair.prompt, pair.response))
        tokenizer = vocabulary.learn_tokenizer(texts, MAX_POSITIONS)
    settings = VerifierSettings(
        arguments.steps, arguments.batch, arguments.verifier_rate, seed=arguments.seed
    )
    model, loss = train_verifier(encode(tokenizer, pairs, vocabulary.EOS_ID), settings, device, begun)
    fresh = take(arguments.seed + 1, "fresh", arguments.evaluate)
    metrics: dict[str, Any] = {"train_loss": loss, "fresh_problems": len(fresh)}
    metrics |= _judged(model, tokenizer, fresh, arguments.batch)
    logger.info("verifier: %s", metrics)
    for question in PUBLISHED_QUESTIONS:
        for wrapping in WRAPPINGS:
            ids = tokenizer(wrapping.format(question)).input_ids
            answer = greedy_responses(model, [ids], MAX_NEW_TOKENS, 1)[0]
            logger.info("%s -> %s", question, tokenizer.decode(answer, skip_special_tokens=True))
    model.cpu().save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(out)
    write_json(out / VAL_METRICS, metrics)
    facts = {**asdict(settings), "training problems": len(problems), "device": device}
    further = {"from": start.name} if start else {}
    command = _command(
        "verifier-demo", arguments, out=out.name, samples=len(problems), steps=arguments.steps,
        **{"verifier-rate": arguments.verifier_rate}, **further,
    )  # fmt: skip
    (out / TRAIN_COMMAND).write_text(train_command(command, facts, device) + _continued("verifier", earlier))


def _judged(
    model: T5Gemma2ForConditionalGeneration, tokenizer: Any, fresh: list[Problem], batch: int
) -> dict[str, list[float]]:
    """Shares of answers that are the generator's, and whose result is right, by wrapping."""
    exact, right = [], []
    for wrapping in WRAPPINGS:
        responses = [sample.response for sample in _answered(model, tokenizer, fresh, batch, wrapping)]
        answers = tokenizer.batch_decode(responses, skip_special_tokens=True)
        judged = list(zip(answers, fresh, strict=True))
        exact.append(sum(answer == problem.answer for answer, problem in judged) / len(fresh))
        right.append(sum(last_number(answer) == problem.result for answer, problem in judged) / len(fresh))
    return {"fresh_answer_exact": exact, "fresh_result_correct": right}


def _continued(what: str, earlier: str | None) -> str:
    return "" if earlier is None else f"\ncontinued from a {what} that was made by:\n\n{earlier}"


def _answered(
    verifier: T5Gemma2ForConditionalGeneration,
    tokenizer: Any,
    problems: list[Problem],
    batch: int,
    wrapping: str = "{}",
) -> list[Sample]:
    """The problems, asked in `wrapping`, with the verifier's greedy answers, `batch` at a time."""
    prompts = tokenizer([wrapping.format(problem.question) for problem in problems]).input_ids
    responses = greedy_responses(verifier, prompts, MAX_NEW_TOKENS, batch)
    return [Sample(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]


def last_number(text: str) -> int | None:
    """The last whole number in a text: the result that an answer ends on."""
    words = "".join(character if character.isdigit() else " " for character in text).split()
    return int(words[-1]) if words else None


def build_draft(family: str, arguments: argparse.Namespace, verifier: Path, out: Path) -> None:
    """Trains a draft of `family` by `t5gemma2 train <family>` in a run folder that does not stay, and puts it into
    `out`. Raises `KeyboardInterrupt` when it is stopped by a signal: then all of it is to be done again.
    """
    samples = arguments.samples or DRAFT_SAMPLES
    # Read now: if it were missing, that would otherwise be found when the draft is trained.
    earlier = (arguments.start / TRAIN_COMMAND).read_text() if arguments.start else None
    with tempfile.TemporaryDirectory() as run:
        chosen = family_arguments(family, _family_words(family, arguments, verifier, Path(run), samples))
        chosen.console = arguments.console
        chosen.command = _command(
            "demo", arguments, out=out.parent.name, samples=samples, only=family, verifier=verifier.name,
            epochs=arguments.epochs, rate=arguments.rate, anchors=arguments.anchors, answers=arguments.answers,
            **{"short-blocks": arguments.short_blocks},
            **({"max-steps": arguments.max_steps} if arguments.max_steps else {}),
            **({"from": arguments.start.name} if arguments.start else {}),
        )  # fmt: skip
        try:
            train_family(chosen)
        except Interrupted:
            raise KeyboardInterrupt from None
        trained = RunFolder(Path(run)).newest()
        assert trained is not None
        _publish(trained, arguments, verifier, out, earlier)


def _publish(
    trained: Checkpoint, arguments: argparse.Namespace, verifier: Path, out: Path, earlier: str | None
) -> None:
    """Puts the draft into `out`, without what only its run needs, and with its acceptance on fresh problems."""
    draft = load_draft(trained.path)
    loaded = FrozenVerifier.load(str(verifier), training_device(arguments.device))
    fresh = take(arguments.seed + 3, "fresh", arguments.evaluate)
    metrics = trained.json(VAL_METRICS) or {}
    save_draft(
        out, draft, os.path.relpath(verifier, out), loaded.model.config.decoder.final_logit_softcapping
    )
    shutil.copyfile(trained.path / TRAINING_STATE, out / TRAINING_STATE)
    write_json(out / VAL_METRICS, metrics | _fresh_metrics(draft, loaded, fresh, arguments.batch * 4))
    text = f"{(trained.path / TRAIN_COMMAND).read_text()}fresh problems: {len(fresh)}\n"
    (out / TRAIN_COMMAND).write_text(text + _continued("draft", earlier))


def _family_words(
    family: str, arguments: argparse.Namespace, verifier: Path, run: Path, samples: int
) -> list[str]:
    """The flags of `t5gemma2 train <family>` for the demo's draft, which learns other problems than the verifier."""
    options: dict[str, object] = {
        "--verifier": verifier.absolute(),
        "--data": f"demo:{samples}",
        "--responses": "verifier" if arguments.answers == "verifier" else "data",
        "--out": run,
        "--keep": 1,
        "--epochs": arguments.epochs,
        "--rate": arguments.rate,
        "--anchors": arguments.anchors,
        "--rows": arguments.batch,
        "--extractor-batch": arguments.batch,
        "--total-length": TOTAL_LENGTH,
        "--prompt-length": MAX_POSITIONS,
        "--response-length": MAX_NEW_TOKENS,
        "--seed": arguments.seed + 2,
        "--precision": "float32",
        "--train-fraction": TRAIN_FRACTION,
        "--short-blocks": arguments.short_blocks,
    }
    words = ["--no-tensorboard"]
    shape = FAMILIES[family]
    if arguments.max_steps:
        options["--max-steps"] = arguments.max_steps
    if arguments.start:
        options["--from"] = arguments.start
        words += ["--new-verifier"]
    else:
        options["--layers"] = shape.demo.num_layers
        options["--aux-layers"] = ",".join(map(str, shape.demo.aux_layer_ids))
        options["--draft-vocab"] = DRAFT_VOCABULARY_SIZE
        if "markov_rank" in shape.own_keys:
            options["--markov-rank"] = MARKOV_RANK
    if arguments.device:
        options["--device"] = arguments.device
    return [*words, *(str(word) for option in options.items() for word in option)]


def _fresh_metrics(
    draft: TrainableDraft, verifier: FrozenVerifier, fresh: list[Problem], batch: int
) -> dict[str, Any]:
    """Acceptance on fresh problems, each in every wrapping, at K = 1, 3 and the block's, as in val_metrics.json."""
    draft = draft.to(verifier.model.device)
    extractor = Extractor(verifier.model, draft.config.aux_hidden_state_layer_ids)
    asked = [_answered(verifier.model, verifier.tokenizer, fresh, batch, wrapping) for wrapping in WRAPPINGS]
    together = [sample for samples in asked for sample in samples]
    metrics: dict[str, Any] = {}
    for length in (1, 3, draft.config.draft_length):
        found = serving_acceptance(draft, extractor, together, length)
        rates = [serving_acceptance(draft, extractor, one, length).acceptance_rate for one in asked]
        logger.info("%s K=%d: %s, by wrapping %s", draft.config.family, length, found, rates)
        metrics |= {
            f"fresh_acceptance_rate_k{length}": found.acceptance_rate,
            f"fresh_acceptance_rate_by_wrapping_k{length}": rates,
            f"fresh_mean_acceptance_length_k{length}": found.mean_acceptance_length,
            f"fresh_per_position_k{length}": list(found.per_position or ()),
        }
    return metrics


def _command(target: str, arguments: argparse.Namespace, *, out: str, samples: int, **options: object) -> str:
    """The command that builds one part, every option resolved and folders by their names alone."""
    resolved = {"out": out, "seed": arguments.seed, "samples": samples, "batch": arguments.batch, **options}
    words = (word for name, value in resolved.items() for word in (f"--{name}", str(value)))
    return shlex.join(["t5gemma2", "train", target, *words])


def demo_verifier(arguments: argparse.Namespace) -> None:
    """`t5gemma2 train verifier-demo`."""
    build_verifier(arguments, arguments.out, arguments.start)


def demo(arguments: argparse.Namespace) -> None:
    """`t5gemma2 train demo`: the verifier, unless it is given or left out, then a draft of each family."""
    parts = set(arguments.only or FAMILIES)
    if arguments.only is None and arguments.verifier is None:
        parts.add("verifier")
    if "verifier" in parts and arguments.verifier is not None:
        raise ValueError(f"--only verifier: is not built where --verifier {arguments.verifier} is given")
    if arguments.start is not None and (len(parts) != 1 or "verifier" in parts):
        raise ValueError("--from: goes with one --only FAMILY")
    verifier = arguments.verifier or arguments.out / "verifier"
    if "verifier" in parts:
        build_verifier(arguments, verifier)
    elif not (verifier / "config.json").is_file():
        raise ValueError(f"{verifier}: holds no verifier; name one by --verifier")
    for family in FAMILIES:
        if family in parts:
            build_draft(family, arguments, verifier, arguments.out / family)
