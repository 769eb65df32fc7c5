"""From parsed flags to a finished training run; a failure is one line and exit code 1, a signal is 130."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import torch
from rich.console import Console
from rich.logging import RichHandler
from safetensors import SafetensorError
from transformers import AutoTokenizer

from plugin.drafts import checkpoint as checkpoints
from plugin.training.data.conversations import plain_text, template_text
from plugin.training.data.mixture import read_data
from plugin.training.data.samples import Sample
from plugin.training.device import training_device
from plugin.training.draft.checkpoint import load_draft
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.model import TrainableDraft
from plugin.training.draft.shape import PUBLISHED_BLOCK_SIZE, new_draft, new_shape
from plugin.training.run.checkpoint import (
    RUN_FACTS,
    RunMetadata,
    compare_facts,
    restore,
    train_command,
)
from plugin.training.run.events import Events, MissingTensorBoard, adopt_events, summary_writer
from plugin.training.run.folder import Checkpoint, RunError, RunFolder
from plugin.training.run.progress import RunProgress
from plugin.training.run.stop import Interrupted
from plugin.training.run.trainer import DraftTrainer
from plugin.training.run.training_run import RunOptions, TrainingRun
from plugin.training.run_data import prepare_data
from plugin.training.settings import DraftSettings, LossSettings
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.frozen_verifier import FrozenVerifier

logger = logging.getLogger(__name__)

FAILED: Final = 1
STOPPED: Final = 130
_KNOWN = (
    ValueError, FloatingPointError, MissingTensorBoard, OSError, SafetensorError, checkpoints.CheckpointError,
)  # fmt: skip
_LOG_EVERY_ON_CUDA = 10


def guarded(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Runs `command` with its log on standard error; the exit code."""
    console = Console(stderr=True)
    handler: logging.Handler = RichHandler(console=console, show_path=False)
    if not console.is_terminal:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s")
    logging.getLogger("plugin").setLevel(logging.INFO)
    arguments.console = console
    try:
        command(arguments)
    except Interrupted as error:
        return _ended(str(error), STOPPED)
    except KeyboardInterrupt:
        return _ended("stopped; the same command starts it again", STOPPED)
    except torch.OutOfMemoryError as error:
        return _ended(f"out of memory, try a smaller --rows or --extractor-batch: {_line(error)}", FAILED)
    except _KNOWN as error:
        return _ended(_line(error), FAILED)
    return 0


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _ended(words: str, code: int) -> int:
    print(f"t5gemma2: {words}", file=sys.stderr)
    return code


def train_family(arguments: argparse.Namespace) -> None:
    """`t5gemma2 train <family>`: what is cheap to check is checked before what takes long.

    First flags, verifier's config and run folder, then the data, the draft's shape and the settings of a run that goes
    on, and only then are samples encoded and answered.
    """
    device = training_device(arguments.device)
    settings = _settings(arguments, device)
    log_every = arguments.log_every or (_LOG_EVERY_ON_CUDA if device.type == "cuda" else 1)
    options = RunOptions(arguments.save_every, arguments.keep, log_every)
    named = checkpoints.resolve(model=None, draft="none", verifier=arguments.verifier, k=None)
    if not arguments.no_tensorboard:
        summary_writer()
    folder = RunFolder(arguments.out)
    with folder.claimed():
        newest = open_run(folder, arguments)
        path = checkpoints.fetch(named).verifier.path
        render = template_text(AutoTokenizer.from_pretrained(path)) if arguments.chat_template else plain_text
        alone = arguments.responses == "verifier"
        mixture = read_data(arguments.data, settings.seed, render, prompts_alone=alone)
        verifier = FrozenVerifier.load(path, device)
        draft = begun_draft(arguments, verifier, newest)
        facts = _facts(settings, arguments, verifier)
        if newest is not None:
            compare_facts(newest, facts)
        data = prepare_data(arguments, settings, verifier, mixture, folder)
        facts["data"] = data.counts["tokens_sha256"]
        trainer = build_trainer(draft, verifier, settings, data.train)
        if newest is not None:
            compare_facts(newest, {"data": facts["data"]})
            restore(newest, trainer)
        if trainer.done:
            done = trainer.state.epoch
            logger.info("%s: all %d epochs are trained; --epochs trains more", folder.path, done)
            return
        if newest is not None and not arguments.no_tensorboard:
            adopt_events(newest.path / "tensorboard", folder.path / "tensorboard")
        events_folder = None if arguments.no_tensorboard else folder.path / "tensorboard"
        events = Events(events_folder, trainer.state.global_step + 1)
        sizes = {"training samples": len(data.train), "validation samples": len(data.validation)}
        metadata = RunMetadata(
            verifier=named.verifier.path,
            softcap=verifier.model.config.decoder.final_logit_softcapping,
            command=train_command(arguments.command, {**facts, **sizes, "device": device}, device),
            launcher=f"exec {arguments.command}",
            data=data.counts,
            facts=facts,
            events=events.folder,
        )
        progress = RunProgress(trainer.total_steps, trainer.state.global_step, arguments.console)
        try:
            TrainingRun(trainer, folder, metadata, data.validation, options, events, progress)()
        finally:
            events.close()


def _settings(arguments: argparse.Namespace, device: torch.device) -> DraftSettings:
    """The flags' destinations are the settings' fields, but for those of the loss."""
    given = {
        part.name: getattr(arguments, part.name) for part in fields(DraftSettings) if part.name != "loss"
    }
    given["precision"] = arguments.precision or ("bfloat16" if device.type == "cuda" else "float32")
    return DraftSettings(**given, loss=LossSettings(gamma=arguments.gamma))


def open_run(folder: RunFolder, arguments: argparse.Namespace) -> Checkpoint | None:
    """The checkpoint that the run goes on from, None for a new run. Raises `RunError` where the flags forbid it."""
    folder.clean()
    newest = folder.newest()
    if newest is None:
        return None
    if arguments.fresh:
        raise RunError(f"--fresh: {arguments.out} holds {newest.path.name}; use another --out or remove it")
    if arguments.start is not None:
        logger.info("--from: not read again, the run goes on from %s", newest.path)
    _check_family(newest, arguments.target)
    if newest.json(RUN_FACTS) is None:
        logger.warning("%s: no %s, so nothing is compared with its settings", newest.path, RUN_FACTS)
    logger.info("%s: going on from %s", folder.path, newest.path)
    return newest


def _check_family(checkpoint: Checkpoint, asked: str) -> None:
    family = (checkpoint.json("config.json") or {}).get("speculators_model_type", asked)
    if family != asked:
        raise RunError(f"{checkpoint.path}: speculators_model_type is {family!r}, asked for is {asked!r}")


def begun_draft(
    arguments: argparse.Namespace, verifier: FrozenVerifier, newest: Checkpoint | None
) -> TrainableDraft | DraftConfig:
    """The draft of the newest checkpoint or of --from, or the shape of a new one, whose vocabulary the data decide."""
    source = newest or (Checkpoint(arguments.start, 0, None) if arguments.start else None)
    if source is None:
        mask = arguments.mask_token_id
        mask = verifier.tokenizer.mask_token_id if mask is None else mask
        if mask is None:
            raise ValueError("the verifier's tokenizer has no mask token; give --mask-token-id")
        own_keys = {} if arguments.markov_rank is None else {"markov_rank": arguments.markov_rank}
        return new_shape(
            arguments.target, verifier.model.config.decoder, mask_token_id=mask, layers=arguments.layers,
            aux=arguments.aux_layers, draft_vocab_size=arguments.draft_vocab,
            block_size=arguments.block_size or PUBLISHED_BLOCK_SIZE, **own_keys,
        )  # fmt: skip
    _check_family(source, arguments.target)
    draft = load_draft(source.path, verifier.table)
    config = draft.config
    asked = {
        "--layers": (arguments.layers, config.num_hidden_layers),
        "--aux-layers": (arguments.aux_layers, config.aux_hidden_state_layer_ids),
        "--draft-vocab": (arguments.draft_vocab, config.draft_vocab_size),
        "--block-size": (arguments.block_size, config.block_size),
        "--mask-token-id": (arguments.mask_token_id, config.mask_token_id),
        "--markov-rank": (arguments.markov_rank, config.markov_rank),
    }
    for name, (wanted, found) in asked.items():
        if wanted is not None and wanted != found:
            raise RunError(f"{name}: {wanted} here, {found} in {source.path}")
    return draft


def _facts(
    settings: DraftSettings, arguments: argparse.Namespace, verifier: FrozenVerifier
) -> dict[str, Any]:
    """What a resumed run must share beside its data, JSON-ready."""
    recipe = asdict(settings)
    # How many samples the verifier reads at a time is a matter of memory, not of what is learned.
    del recipe["extractor_batch"]
    loss = {f"loss.{name}": value for name, value in recipe.pop("loss").items()}
    source = {
        "family": arguments.target,
        "responses": arguments.responses,
        "verifier": verifier.fingerprint(),
    }
    return {**recipe, **loss, **source}


def build_trainer(
    draft: TrainableDraft | DraftConfig,
    verifier: FrozenVerifier,
    settings: DraftSettings,
    train: Sequence[Sample],
) -> DraftTrainer:
    """The trainer of `draft`, which is made first where there is only its shape.

    Raises `ValueError` when no training sample has room for an anchor.
    """
    if isinstance(draft, DraftConfig):
        draft = new_draft(draft, verifier.table, (sample.response for sample in train), settings.seed)
    least = draft.config.block_size if settings.whole_blocks else 2
    if not any(len(sample.response) >= least for sample in train):
        raise ValueError(
            f"no training sample has a response of {least} tokens, so there is nothing to predict"
        )
    extractor = Extractor(verifier.model, draft.config.aux_hidden_state_layer_ids)
    return DraftTrainer(draft, extractor, settings, train)
