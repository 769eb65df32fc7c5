"""From parsed flags to a finished training run; a failure is one line and exit code 1, a signal is 130."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from typing import Final

import torch
from rich.console import Console
from rich.logging import RichHandler
from safetensors import SafetensorError
from transformers import AutoTokenizer

from plugin.drafts import checkpoint as checkpoints
from plugin.training.data.conversations import plain_text, template_text
from plugin.training.data.mixture import read_data
from plugin.training.device import training_device
from plugin.training.run.beginning import begun_draft, build_trainer, open_run, run_facts
from plugin.training.run.checkpoint import RunMetadata, compare_facts, restore, train_command
from plugin.training.run.events import Events, MissingTracker, adopt_events, check_trackers
from plugin.training.run.folder import RunFolder
from plugin.training.run.processes import Processes
from plugin.training.run.progress import RunProgress
from plugin.training.run.publication import Publication
from plugin.training.run.stop import Interrupted
from plugin.training.run.training_run import RunOptions, TrainingRun
from plugin.training.run_data import prepare_data
from plugin.training.settings import DraftSettings, LossSettings
from plugin.training.verifier.frozen_verifier import FrozenVerifier

logger = logging.getLogger(__name__)

FAILED: Final = 1
STOPPED: Final = 130
_KNOWN = (
    ValueError, FloatingPointError, MissingTracker, OSError, SafetensorError, checkpoints.CheckpointError,
)  # fmt: skip
_LOG_EVERY_ON_CUDA = 10


def guarded(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Runs `command` with its log on standard error; the exit code. Of several processes the first one talks."""
    main = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True, quiet=not main)
    handler: logging.Handler = RichHandler(console=console, show_path=False)
    if not console.is_terminal:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s")
    logging.getLogger("plugin").setLevel(logging.INFO if main else logging.ERROR)
    arguments.console = console
    try:
        command(arguments)
    except Interrupted as error:
        return _ended(str(error), STOPPED) if main else STOPPED
    except KeyboardInterrupt:
        return _ended("stopped; the same command starts it again", STOPPED) if main else STOPPED
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
    on, and only then are samples encoded and answered. Started by torchrun, it is one of several processes.
    """
    wanted = training_device(arguments.device)
    with Processes.joined(wanted) as processes, ExitStack() as held:
        _train(arguments, processes, processes.device(wanted), held)


def _train(
    arguments: argparse.Namespace, processes: Processes, device: torch.device, held: ExitStack
) -> None:
    settings = _settings(arguments, device)
    log_every = arguments.log_every or (_LOG_EVERY_ON_CUDA if device.type == "cuda" else 1)
    options = RunOptions(arguments.save_every, arguments.keep, log_every)
    named = checkpoints.resolve(model=None, draft="none", verifier=arguments.verifier, k=None)
    publication = Publication.asked(arguments, named.verifier.path)
    check_trackers(not arguments.no_tensorboard, arguments.tracker)
    folder = RunFolder(arguments.out)
    with processes.main_first():
        if processes.main:
            held.enter_context(folder.claimed())
        newest = open_run(folder, arguments)
    path = checkpoints.fetch(named).verifier.path
    render = template_text(AutoTokenizer.from_pretrained(path)) if arguments.chat_template else plain_text
    alone = arguments.responses == "verifier"
    mixture = read_data(arguments.data, settings.seed, render, prompts_alone=alone)
    verifier = FrozenVerifier.load(path, device)
    draft = begun_draft(arguments, verifier, newest)
    facts = run_facts(settings, arguments, verifier, processes.count)
    if newest is not None:
        compare_facts(newest, facts)
    with processes.main_first():
        data = prepare_data(arguments, settings, verifier, mixture, folder)
    facts["data"] = data.counts["tokens_sha256"]
    trainer = build_trainer(draft, verifier, settings, data.train, processes, arguments.vocab_file)
    if newest is not None:
        compare_facts(newest, {"data": facts["data"]})
        restore(newest, trainer)
    if trainer.done:
        logger.info(
            "%s: all is trained, %d epochs and %d steps; more --epochs or --max-steps train more",
            folder.path, trainer.state.epoch, trainer.state.global_step,
        )  # fmt: skip
        return
    boards = [] if arguments.no_tensorboard or not processes.main else [folder.path / "tensorboard"]
    if newest is not None and boards:
        adopt_events(newest.path / "tensorboard", boards[0])
    sizes = {"training samples": len(data.train), "validation samples": len(data.validation)}
    events = Events(
        boards[0] if boards else None,
        trainer.state.global_step + 1,
        arguments.tracker if processes.main else (),
        {**facts, **sizes},
        folder.path,
    )
    metadata = RunMetadata(
        verifier=publication.verifier,
        softcap=verifier.model.config.decoder.final_logit_softcapping,
        command=train_command(arguments.command, {**facts, **sizes, "device": device}, device),
        launcher=f"exec {processes.launcher}{arguments.command}",
        data=data.counts,
        facts=facts,
        events=events.folder,
        license=publication.license,
    )
    progress = RunProgress(trainer.total_steps, trainer.state.global_step, arguments.console)
    try:
        TrainingRun(trainer, folder, metadata, data.validation, options, events, progress)()
    finally:
        events.close()
    if processes.main:
        publication.push(folder)


def _settings(arguments: argparse.Namespace, device: torch.device) -> DraftSettings:
    """The flags' destinations are the settings' fields, but for those of the loss."""
    given = {
        part.name: getattr(arguments, part.name) for part in fields(DraftSettings) if part.name != "loss"
    }
    given["precision"] = arguments.precision or ("bfloat16" if device.type == "cuda" else "float32")
    loss = LossSettings(arguments.gamma, arguments.terms, arguments.confidence)
    return DraftSettings(**given, loss=loss)
