"""From parsed flags to a finished training run; a failure is one line and exit code 1, a signal is 130."""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

import torch
from rich.console import Console
from rich.logging import RichHandler
from safetensors import SafetensorError
from transformers import AutoTokenizer

from plugin.drafts import checkpoint as checkpoints
from plugin.drafts.families import Family
from plugin.training.data.conversations import plain_text, template_text
from plugin.training.data.mixture import Pair, read_data
from plugin.training.data.responses import verifier_responses
from plugin.training.data.samples import Sample, encode, split_samples
from plugin.training.device import training_device
from plugin.training.draft.checkpoint import train_command
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.losses import LossSettings
from plugin.training.draft.model import DraftModel
from plugin.training.draft.shape import PUBLISHED_BLOCK_SIZE, new_draft, new_shape
from plugin.training.run.checkpoint import RUN_FACTS, Papers, compare_facts, restore, restored_draft
from plugin.training.run.events import Events, MissingTensorBoard, adopt_events, summary_writer
from plugin.training.run.folder import Checkpoint, RunError, RunFolder
from plugin.training.run.progress import RunProgress
from plugin.training.run.settings import DraftSettings
from plugin.training.run.stop import Interrupted
from plugin.training.run.trainer import DraftTrainer
from plugin.training.run.training_run import RunOptions, TrainingRun
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.frozen_verifier import FrozenVerifier

logger = logging.getLogger(__name__)

FAILED: Final = 1
STOPPED: Final = 130
_KNOWN = (
    ValueError, FloatingPointError, MissingTensorBoard, OSError, SafetensorError, checkpoints.CheckpointError,
)  # fmt: skip
_LOG_EVERY_ON_CUDA = 10
_RESPONSES_AT_ONCE = 8


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
    options = RunOptions(
        arguments.save_every, arguments.keep,
        arguments.log_every or (_LOG_EVERY_ON_CUDA if device.type == "cuda" else 1),
    )  # fmt: skip
    named = checkpoints.resolve(model=None, draft="none", verifier=arguments.verifier, k=None)
    if not arguments.no_tensorboard:
        summary_writer()
    folder = RunFolder(arguments.out)
    with folder.claimed():
        _train_in(folder, arguments, settings, options, named, device)


def _train_in(
    folder: RunFolder,
    arguments: argparse.Namespace,
    settings: DraftSettings,
    options: RunOptions,
    named: checkpoints.Checkpoints,
    device: torch.device,
) -> None:
    family: Family = arguments.target
    folder.clean()
    newest = folder.newest()
    _check_start(arguments, newest)
    if newest is not None:
        logger.info("%s: going on from %s", folder.path, newest.path)

    path = checkpoints.fetch(named).verifier.path
    render = template_text(AutoTokenizer.from_pretrained(path)) if arguments.chat_template else plain_text
    mixture = read_data(arguments.data, settings.seed, render)
    verifier = FrozenVerifier.load(path, device)
    begun = _begun(arguments, family, verifier, newest)
    facts = _facts(settings, family, arguments.responses, verifier)
    if newest is not None:
        compare_facts(newest, facts)

    samples = _samples(arguments, settings, verifier, mixture.pairs, folder)
    train, validation = split_samples(samples, settings.train_fraction, settings.seed)
    draft = (
        begun
        if isinstance(begun, DraftModel)
        else new_draft(begun, verifier.table, (sample.response for sample in train), settings.seed)
    )
    _check_anchors(train, settings, draft.config.block_size)
    extractor = Extractor(verifier.model, draft.config.aux_hidden_state_layer_ids)
    trainer = DraftTrainer(draft, extractor, settings, train, verifier.pad_id, verifier.start_id)
    data = {
        **mixture.counts,
        "responses": arguments.responses,
        "training_samples": len(train),
        "validation_samples": len(validation),
        "tokens_sha256": _digest(samples),
    }
    facts["data"] = data["tokens_sha256"]
    if newest is not None:
        compare_facts(newest, {"data": facts["data"]})
        restore(newest, trainer)
    if trainer.done:
        logger.info("%s: all %d epochs are trained; --epochs trains more", folder.path, trainer.state.epoch)
        return
    if newest is not None and not arguments.no_tensorboard:
        adopt_events(newest.path / "tensorboard", folder.path / "tensorboard")
    events = Events(
        None if arguments.no_tensorboard else folder.path / "tensorboard", trainer.state.global_step + 1
    )
    command = arguments.command
    told = {**facts, "training samples": len(train), "validation samples": len(validation), "device": device}
    papers = Papers(
        verifier=named.verifier.path,
        softcap=verifier.model.config.decoder.final_logit_softcapping,
        command=train_command(command, told, device),
        launcher=f"exec {command}",
        data=data,
        facts=facts,
        events=events.folder,
    )
    progress = RunProgress(trainer.total_steps, trainer.state.global_step, arguments.console)
    try:
        TrainingRun(trainer, folder, papers, validation, options, events, progress)()
    finally:
        events.close()


def _settings(arguments: argparse.Namespace, device: torch.device) -> DraftSettings:
    return DraftSettings(
        epochs=arguments.epochs,
        rows=arguments.rows,
        accumulate=arguments.accumulate,
        total_length=arguments.total_length,
        prompt_length=arguments.prompt_length,
        response_length=arguments.response_length,
        max_anchors=arguments.anchors,
        extractor_batch=arguments.extractor_batch,
        peak_rate=arguments.rate,
        warmup=arguments.warmup,
        weight_decay=arguments.weight_decay,
        clip=arguments.clip,
        noise=arguments.noise,
        whole_blocks=arguments.whole_blocks,
        train_fraction=arguments.train_fraction,
        seed=arguments.seed,
        precision=arguments.precision or ("bfloat16" if device.type == "cuda" else "float32"),
        loss=LossSettings(gamma=arguments.gamma),
    )


def _check_start(arguments: argparse.Namespace, newest: Checkpoint | None) -> None:
    if newest is None:
        return
    if arguments.fresh:
        raise RunError(f"--fresh: {arguments.out} holds {newest.path.name}; use another --out or remove it")
    if arguments.start is not None:
        logger.info("--from: not read again, the run goes on from %s", newest.path)
    family = (newest.json("config.json") or {}).get("speculators_model_type")
    if family != arguments.target:
        raise RunError(
            f"{newest.path}: speculators_model_type is {family!r}, asked for is {arguments.target!r}"
        )
    if newest.json(RUN_FACTS) is None:
        logger.warning("%s: no %s, so nothing is compared with its settings", newest.path, RUN_FACTS)


def _samples(
    arguments: argparse.Namespace,
    settings: DraftSettings,
    verifier: FrozenVerifier,
    pairs: Sequence[Pair],
    folder: RunFolder,
) -> list[Sample]:
    """The pairs as token ids, with the responses that are asked for."""
    samples = encode(
        verifier.tokenizer, pairs, verifier.end_id, settings.prompt_length, settings.response_length
    )
    if arguments.responses == "data":
        return samples
    length = min(arguments.max_new_tokens or settings.response_length, settings.response_length)
    at_once = settings.extractor_batch * _RESPONSES_AT_ONCE
    return verifier_responses(verifier, samples, length, at_once, folder.path)


def _check_anchors(train: Sequence[Sample], settings: DraftSettings, block_size: int) -> None:
    """Raises `ValueError` when no training sample has room for an anchor."""
    least = block_size if settings.whole_blocks else 2
    if not any(len(sample.response) >= least for sample in train):
        raise ValueError(
            f"no training sample has a response of {least} tokens, so there is nothing to predict"
        )


def _begun(
    arguments: argparse.Namespace, family: Family, verifier: FrozenVerifier, newest: Checkpoint | None
) -> DraftModel | DraftConfig:
    """The draft of the newest checkpoint or of --from, or the shape of a new one, whose vocabulary the data decide."""
    source = newest or (Checkpoint(arguments.start, 0, None) if arguments.start else None)
    if source is None:
        mask = arguments.mask_token_id
        mask = verifier.tokenizer.mask_token_id if mask is None else mask
        if mask is None:
            raise ValueError("the verifier's tokenizer has no mask token; give --mask-token-id")
        return new_shape(
            family, verifier.model.config.decoder, mask_token_id=mask, layers=arguments.layers,
            aux=arguments.aux_layers, draft_vocab_size=arguments.draft_vocab,
            block_size=arguments.block_size or PUBLISHED_BLOCK_SIZE,
        )  # fmt: skip
    draft = restored_draft(source, verifier.table)
    config = draft.config
    asked = {
        "target": (family, config.family),
        "--layers": (arguments.layers, config.num_hidden_layers),
        "--aux-layers": (arguments.aux_layers, config.aux_hidden_state_layer_ids),
        "--draft-vocab": (arguments.draft_vocab, config.draft_vocab_size),
        "--block-size": (arguments.block_size, config.block_size),
        "--mask-token-id": (arguments.mask_token_id, config.mask_token_id),
    }
    for name, (wanted, found) in asked.items():
        if wanted is not None and wanted != found:
            raise RunError(f"{name}: {wanted} here, {found} in {source.path}")
    return draft


def _facts(
    settings: DraftSettings, family: Family, responses: str, verifier: FrozenVerifier
) -> dict[str, Any]:
    """What a resumed run must share beside its data, JSON-ready."""
    recipe = asdict(settings)
    # How many samples the verifier reads at a time is a matter of memory, not of what is learned.
    del recipe["extractor_batch"]
    loss = {f"loss.{name}": value for name, value in recipe.pop("loss").items()}
    return {
        **recipe,
        **loss,
        "family": family,
        "responses": responses,
        "verifier": verifier.fingerprint(),
    }


def _digest(samples: Sequence[Sample]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr((sample.prompt, sample.response)).encode())
    return digest.hexdigest()
