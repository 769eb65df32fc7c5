"""Builds the bundled demo, `plugin/demo/`: the tiny verifier and a draft of each family.

    t5gemma2 train demo --out plugin/demo
    t5gemma2 train verifier-demo --out plugin/demo/verifier
    t5gemma2 train demo --only dflash --out plugin/demo

A draft can be trained further with --from FOLDER; the bundled ones were, first on a GPU in large batches and then on a
CPU in small ones (see the train_command.txt beside each).
Runs on CUDA where there is any, else on the CPU (hours instead of minutes; --steps and --samples make it shorter).
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from transformers import AutoTokenizer, T5Gemma2ForConditionalGeneration

from plugin.drafts.families import FAMILIES, Family
from plugin.training.data.pairs import Pair
from plugin.training.data.problems.generate import PUBLISHED_QUESTIONS, Problem, take
from plugin.training.data.samples import Sample, encode, split_samples
from plugin.training.demo import tokenizer as vocabulary
from plugin.training.demo.tiny_verifier import MAX_POSITIONS, VerifierSettings, train_verifier
from plugin.training.device import training_device
from plugin.training.draft.checkpoint import read_draft, read_state, train_command, write_draft, write_json
from plugin.training.draft.shape import new_draft, new_shape
from plugin.training.run.evaluation import acceptance, evaluate
from plugin.training.run.progress import RunProgress
from plugin.training.run.settings import DraftSettings
from plugin.training.run.trainer import DraftTrainer, StepReport, TrainingState, check_finite
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.greedy import greedy_responses

logger = logging.getLogger(__name__)

MARKOV_RANK: Final = 32
DRAFT_VOCABULARY_SIZE: Final = 320
MAX_NEW_TOKENS: Final = 96
TOTAL_LENGTH: Final = 128
"""Of a packed row, tokens: room for one response and some of the shorter ones, since attention costs by the row."""
TOKENIZER_TEXTS: Final = 20_000
LOG_EVERY: Final = 10
VERIFIER_SAMPLES: Final = 400_000
DRAFT_SAMPLES: Final = 60_000


def _pairs(problems: list[Problem]) -> list[Pair]:
    return [Pair(problem.question, problem.answer) for problem in problems]


def build_verifier(arguments: argparse.Namespace, out: Path, device: torch.device) -> None:
    """Trains the tokenizer and the verifier into `out`."""
    problems = take(arguments.seed, "train", arguments.samples)
    texts = (text for problem in problems[:TOKENIZER_TEXTS] for text in (problem.question, problem.answer))
    tokenizer = vocabulary.learn_tokenizer(texts, MAX_POSITIONS)
    settings = VerifierSettings(steps=arguments.steps, batch_size=arguments.batch, seed=arguments.seed)
    samples = encode(tokenizer, _pairs(problems), vocabulary.EOS_ID)
    model, loss = train_verifier(samples, settings, device)
    fresh = take(arguments.seed + 1, "fresh", arguments.evaluate)
    responses = greedy_responses(model, _prompts(tokenizer, fresh), MAX_NEW_TOKENS, arguments.batch)
    answers = tokenizer.batch_decode(responses, skip_special_tokens=True)
    same = sum(answer == problem.answer for answer, problem in zip(answers, fresh, strict=True))
    right = sum(
        _last_number(answer) == problem.result for answer, problem in zip(answers, fresh, strict=True)
    )
    metrics = {
        "train_loss": loss,
        "fresh_problems": len(fresh),
        "fresh_answer_exact": same / len(fresh),
        "fresh_result_correct": right / len(fresh),
    }
    logger.info("verifier: %s", metrics)
    for question in PUBLISHED_QUESTIONS:
        ids = greedy_responses(model, [tokenizer(question).input_ids], MAX_NEW_TOKENS, 1)[0]
        logger.info("%s -> %s", question, tokenizer.decode(ids, skip_special_tokens=True))
    model.cpu().save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(out)
    write_json(out / "val_metrics.json", metrics)
    facts = {**asdict(settings), "training problems": len(problems), "device": device}
    (out / "train_command.txt").write_text(train_command(_command("verifier", arguments, out), facts, device))


def build_draft(
    family: Family, arguments: argparse.Namespace, verifier_folder: Path, out: Path, device: torch.device
) -> None:
    """Trains one draft of `family` for the verifier in `verifier_folder`, on that verifier's own greedy answers."""
    tokenizer = AutoTokenizer.from_pretrained(verifier_folder)
    verifier = (
        T5Gemma2ForConditionalGeneration.from_pretrained(verifier_folder, dtype=torch.float32)
        .to(device)
        .eval()
    )
    verifier.requires_grad_(False)
    start: Path | None = arguments.start
    if start:
        # All of it now: what is missing there would otherwise be found when the draft is trained and lost.
        draft, begun, earlier = (
            read_draft(start).to(device),
            read_state(start),
            (start / "train_command.txt").read_text(),
        )
        if draft.config.family != family:
            raise ValueError(
                f"{start}: speculators_model_type is {draft.config.family!r}, asked for is {family!r}"
            )
    problems = take(arguments.seed + 2, "train", arguments.samples)
    if arguments.answers == "reference":
        samples = encode(
            tokenizer, _pairs(problems), vocabulary.EOS_ID, MAX_POSITIONS, response_length=MAX_NEW_TOKENS
        )
    else:
        samples = _answered(verifier, tokenizer, problems, arguments.batch)
    train, validation = split_samples(samples, seed=arguments.seed)
    if not start:
        shape = new_shape(
            family, verifier.config.decoder, mask_token_id=tokenizer.mask_token_id,
            layers=FAMILIES[family].demo.num_layers, aux=FAMILIES[family].demo.aux_layer_ids,
            draft_vocab_size=DRAFT_VOCABULARY_SIZE, markov_rank=MARKOV_RANK,
        )  # fmt: skip
        table = verifier.get_input_embeddings().weight.detach()
        draft = new_draft(shape, table, (sample.response for sample in train), arguments.seed)
    config = draft.config
    settings = DraftSettings(
        epochs=arguments.epochs,
        rows=arguments.batch,
        total_length=TOTAL_LENGTH,
        prompt_length=MAX_POSITIONS,
        response_length=MAX_NEW_TOKENS,
        max_anchors=arguments.anchors,
        extractor_batch=arguments.batch,
        peak_rate=arguments.rate,
        seed=arguments.seed,
        precision="float32",
    )
    extractor = Extractor(verifier, config.aux_hidden_state_layer_ids)
    trainer = DraftTrainer(draft, extractor, settings, train, vocabulary.PAD_ID, vocabulary.BOS_ID)
    state = _trained(trainer, validation, arguments.console)
    draft.load_state_dict(
        {name: t.bfloat16().to(t) if t.is_floating_point() else t for name, t in draft.state_dict().items()}
    )
    metrics: dict[str, Any] = evaluate(trainer, validation) if validation else {}
    fresh = _answered(
        verifier, tokenizer, take(arguments.seed + 3, "fresh", arguments.evaluate), arguments.batch
    )
    for length in (1, 3, config.block_size - 1):
        found = acceptance(trainer, fresh, length)
        logger.info("%s K=%d: %s", family, length, found)
        metrics |= {
            f"fresh_acceptance_rate_k{length}": found.acceptance_rate,
            f"fresh_mean_acceptance_length_k{length}": found.mean_acceptance_length,
            f"fresh_per_position_k{length}": list(found.per_position or ()),
        }
    facts = {
        **asdict(settings),
        "training samples": len(train),
        "validation samples": len(validation),
        "fresh problems": len(fresh),
        "responses": arguments.answers,
        "device": device,
    }
    write_draft(
        out,
        draft,
        os.path.relpath(verifier_folder, out),
        verifier.config.decoder.final_logit_softcapping,
        metrics,
        _after(state, begun) if start else state,
        train_command(_command(family, arguments, out, verifier_folder), facts, device)
        + (f"\ncontinued from a draft that was made by:\n\n{earlier}" if start else ""),
    )


def _trained(trainer: DraftTrainer, validation: list[Sample], console: Console) -> TrainingState:
    """Trains all epochs and gives the state after the last step."""
    state = trainer.state
    with RunProgress(trainer.total_steps, console=console) as progress:
        while not trainer.done:
            unseen: list[StepReport] = []
            for report in trainer.steps():
                unseen.append(report)
                state = trainer.state
                if len(unseen) >= LOG_EVERY or state.local_step == trainer.epoch_steps[state.epoch]:
                    progress.advance(unseen, check_finite(unseen))
                    unseen = []
            if validation and (metrics := evaluate(trainer, validation)):
                progress.say(f"epoch {state.epoch}: loss {metrics['loss_epoch']:.4f}")
            trainer.next_epoch()
    return state


def _after(state: TrainingState, earlier: TrainingState) -> TrainingState:
    """`state` as that of a run which went on from `earlier`."""
    return TrainingState(
        state.epoch + earlier.epoch + 1, state.local_step, state.global_step + earlier.global_step
    )


def _prompts(tokenizer: Any, problems: list[Problem]) -> list[list[int]]:
    return list(tokenizer([problem.question for problem in problems]).input_ids)


def _answered(
    verifier: T5Gemma2ForConditionalGeneration, tokenizer: Any, problems: list[Problem], batch: int
) -> list[Sample]:
    prompts = _prompts(tokenizer, problems)
    responses = greedy_responses(verifier, prompts, MAX_NEW_TOKENS, batch * 4)
    return [Sample(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]


def _last_number(text: str) -> int | None:
    words = "".join(character if character.isdigit() else " " for character in text).split()
    return int(words[-1]) if words else None


def _command(target: str, arguments: argparse.Namespace, out: Path, verifier: Path | None = None) -> str:
    words = ["t5gemma2", "train", "verifier-demo" if verifier is None else "demo"]
    options: dict[str, object] = {
        "--out": out.name,
        "--seed": arguments.seed,
        "--samples": arguments.samples,
        "--batch": arguments.batch,
    }
    if verifier is None:
        options |= {"--steps": arguments.steps}
    else:
        options |= {"--only": target, "--out": out.parent.name, "--verifier": verifier.name}
        options |= {"--epochs": arguments.epochs, "--rate": arguments.rate, "--anchors": arguments.anchors}
        options |= {"--answers": arguments.answers}
        options |= {"--from": arguments.start.name} if arguments.start else {}
    words += [word for name, value in options.items() for word in (name, str(value))]
    return shlex.join(words)


def demo_verifier(arguments: argparse.Namespace) -> None:
    """`t5gemma2 train verifier-demo`."""
    arguments.samples = arguments.samples or VERIFIER_SAMPLES
    build_verifier(arguments, arguments.out, training_device(arguments.device))


def demo(arguments: argparse.Namespace) -> None:
    """`t5gemma2 train demo`: the verifier, unless it is given or left out, then a draft of each family."""
    device = training_device(arguments.device)
    parts = set(arguments.only or FAMILIES)
    if arguments.only is None and arguments.verifier is None:
        parts.add("verifier")
    if "verifier" in parts and arguments.verifier is not None:
        raise ValueError(f"--only verifier: is not built where --verifier {arguments.verifier} is given")
    if arguments.start is not None and (len(parts) != 1 or "verifier" in parts):
        raise ValueError("--from: goes with one --only FAMILY")
    verifier = arguments.verifier or arguments.out / "verifier"
    if "verifier" in parts:
        chosen = argparse.Namespace(**vars(arguments))
        chosen.samples = arguments.samples or VERIFIER_SAMPLES
        build_verifier(chosen, arguments.out / "verifier", device)
    elif not (verifier / "config.json").is_file():
        raise ValueError(f"{verifier}: holds no verifier; name one by --verifier")
    for family in FAMILIES.values():
        if family.name in parts:
            chosen = argparse.Namespace(**vars(arguments))
            chosen.samples = arguments.samples or DRAFT_SAMPLES
            build_draft(family.name, chosen, verifier, arguments.out / family.name, device)
