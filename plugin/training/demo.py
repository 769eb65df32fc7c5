"""Builds the bundled demo, `plugin/demo/`: the tiny verifier and a draft of each family, one command each.

    python -m plugin.training.demo verifier --out plugin/demo/verifier
    python -m plugin.training.demo dflash --verifier plugin/demo/verifier --out plugin/demo/dflash
    python -m plugin.training.demo dspark --verifier plugin/demo/verifier --out plugin/demo/dspark
    python -m plugin.training.demo dflare --verifier plugin/demo/verifier --out plugin/demo/dflare
    python -m plugin.training.demo all --out plugin/demo

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
from typing import Any, Final, Literal

import torch
from transformers import AutoTokenizer, T5Gemma2ForConditionalGeneration

from plugin.training import tokenizer as vocabulary
from plugin.training.draft_checkpoint import read_draft, read_state, train_command, write_draft, write_json
from plugin.training.draft_config import DraftConfig, Family
from plugin.training.draft_model import DraftModel
from plugin.training.draft_trainer import DraftSettings, DraftTrainer
from plugin.training.draft_vocabulary import draft_vocabulary
from plugin.training.extraction import Extractor
from plugin.training.pairs import Pair
from plugin.training.problems import PUBLISHED_QUESTIONS, Problem, take
from plugin.training.samples import Sample, encode, split_samples
from plugin.training.tiny_verifier import MAX_POSITIONS, VerifierSettings, greedy_responses, train_verifier

logger = logging.getLogger(__name__)

Target = Literal["verifier"] | Family

FAMILIES: Final[tuple[Family, ...]] = ("dflash", "dspark", "dflare")
DRAFT_SHAPES: Final[dict[Family, dict[str, Any]]] = {
    "dflash": {"num_hidden_layers": 2, "aux_hidden_state_layer_ids": (1, 3, 5)},
    "dspark": {"num_hidden_layers": 2, "aux_hidden_state_layer_ids": (1, 3, 5), "markov_rank": 32},
    "dflare": {"num_hidden_layers": 3, "aux_hidden_state_layer_ids": (1, 2, 4, 5)},
}
DRAFT_VOCABULARY_SIZE: Final = 320
MAX_NEW_TOKENS: Final = 96
TOKENIZER_TEXTS: Final = 20_000


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
    torch.manual_seed(arguments.seed)
    problems = take(arguments.seed + 2, "train", arguments.samples)
    if arguments.answers == "reference":
        samples = encode(tokenizer, _pairs(problems), vocabulary.EOS_ID)
    else:
        samples = _answered(verifier, tokenizer, problems, arguments.batch)
    train, validation = split_samples(samples, seed=arguments.seed)
    start: Path | None = arguments.start
    draft = read_draft(start) if start else _new_draft(family, verifier, tokenizer.mask_token_id, train)
    if draft.config.family != family:
        raise ValueError(
            f"{start}: speculators_model_type is {draft.config.family!r}, asked for is {family!r}"
        )
    config = draft.to(device).config
    settings = DraftSettings(
        epochs=arguments.epochs,
        batch_size=arguments.batch,
        max_anchors=arguments.anchors,
        peak_rate=arguments.rate,
        seed=arguments.seed,
    )
    extractor = Extractor(verifier, config.aux_hidden_state_layer_ids)
    trainer = DraftTrainer(draft, extractor, settings, vocabulary.PAD_ID, vocabulary.BOS_ID)
    state, _ = trainer.train(train, validation)
    draft.load_state_dict(
        {name: t.bfloat16().to(t) if t.is_floating_point() else t for name, t in draft.state_dict().items()}
    )
    metrics: dict[str, Any] = trainer.evaluate(validation) if validation else {}
    fresh = _answered(
        verifier, tokenizer, take(arguments.seed + 3, "fresh", arguments.evaluate), arguments.batch
    )
    for length in (1, 3, config.block_size - 1):
        found = trainer.acceptance(fresh, length)
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
    earlier = (start / "train_command.txt").read_text() if start else ""
    write_draft(
        out,
        draft,
        os.path.relpath(verifier_folder, out),
        verifier.config.decoder.final_logit_softcapping,
        metrics,
        state.after(read_state(start)) if start else state,
        train_command(_command(family, arguments, out, verifier_folder), facts, device)
        + (f"\ncontinued from a draft that was made by:\n\n{earlier}" if start else ""),
    )


def _new_draft(
    family: Family, verifier: T5Gemma2ForConditionalGeneration, mask_token_id: int, train: list[Sample]
) -> DraftModel:
    size = DRAFT_VOCABULARY_SIZE
    t2d, d2t = draft_vocabulary((sample.response for sample in train), vocabulary.VOCABULARY_SIZE, size)
    decoder = verifier.config.decoder
    config = DraftConfig.for_decoder(
        family, decoder, draft_vocab_size=size, mask_token_id=mask_token_id, **DRAFT_SHAPES[family]
    )
    return DraftModel(config, verifier.get_input_embeddings().weight.detach().cpu(), t2d, d2t)


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
    options = {
        "--out": out.name,
        "--seed": arguments.seed,
        "--samples": arguments.samples,
        "--batch": arguments.batch,
    }
    if verifier is None:
        options |= {"--steps": arguments.steps}
    else:
        options |= {"--verifier": verifier.name, "--epochs": arguments.epochs, "--rate": arguments.rate}
        options |= {"--anchors": arguments.anchors}
        options |= {"--answers": arguments.answers}
        options |= {"--from": arguments.start.name} if arguments.start else {}
    words = [word for name, value in options.items() for word in (name, str(value))]
    return shlex.join(["python", "-m", "plugin.training.demo", target, *words])


def main(argv: list[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m plugin.training.demo", description="Build the bundled demo."
    )
    parser.add_argument("target", choices=("verifier", *FAMILIES, "all"))
    parser.add_argument(
        "--out", type=Path, required=True, help="folder to write (with `all`: the folder of folders)"
    )
    parser.add_argument("--verifier", type=Path, help="folder of the trained verifier, for a draft")
    parser.add_argument("--from", dest="start", type=Path, help="draft checkpoint to go on from")
    parser.add_argument(
        "--answers",
        choices=("verifier", "reference"),
        default="verifier",
        help="train a draft on the verifier's own greedy answers, or on the generator's (no time to make them)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, help="training problems (verifier 400000, draft 60000)")
    parser.add_argument("--evaluate", type=int, default=500, help="fresh problems to measure on")
    parser.add_argument("--steps", type=int, default=8000, help="optimizer steps of the verifier")
    parser.add_argument("--epochs", type=int, default=16, help="epochs of a draft")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate of a draft")
    parser.add_argument("--anchors", type=int, default=8, help="blocks a sample and step of a draft")
    parser.add_argument("--batch", type=int, help="samples a step (512)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if arguments.target in FAMILIES and arguments.verifier is None:
        parser.error(f"--verifier: needed to train a {arguments.target} draft")
    device = torch.device(arguments.device)
    targets: tuple[Target, ...] = (
        ("verifier", *FAMILIES) if arguments.target == "all" else (arguments.target,)
    )
    for target in targets:
        chosen = argparse.Namespace(**vars(arguments))
        chosen.samples = arguments.samples or (400_000 if target == "verifier" else 60_000)
        chosen.batch = arguments.batch or 512
        out = arguments.out / target if arguments.target == "all" else arguments.out
        if target == "verifier":
            build_verifier(chosen, out, device)
        else:
            build_draft(target, chosen, arguments.verifier or arguments.out / "verifier", out, device)


if __name__ == "__main__":
    main()
