"""How a run begins: what it goes on from, the draft that it trains, and what a run that goes on must share."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plugin.training.data.samples import Sample
from plugin.training.draft.checkpoint import load_draft
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.model import TrainableDraft
from plugin.training.draft.shape import PUBLISHED_BLOCK_SIZE, new_draft, new_shape
from plugin.training.draft.vocabulary import read_vocabulary
from plugin.training.flags import SHAPE_FLAGS
from plugin.training.run.checkpoint import RUN_FACTS
from plugin.training.run.folder import Checkpoint, RunError, RunFolder
from plugin.training.run.processes import ALONE, Processes
from plugin.training.run.trainer import DraftTrainer
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.frozen_verifier import FrozenVerifier

logger = logging.getLogger(__name__)


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
    asked = {field: getattr(arguments, field) for field in SHAPE_FLAGS}
    asked = {field: value for field, value in asked.items() if value is not None}
    source = newest or (Checkpoint(arguments.start, 0, None) if arguments.start else None)
    if source is None:
        return _new_shape(arguments, asked, verifier)
    _check_family(source, arguments.target)
    draft = load_draft(source.path, verifier.table, arguments.new_verifier and newest is None)
    for field, wanted in asked.items():
        if wanted != (found := getattr(draft.config, field)):
            raise RunError(f"{SHAPE_FLAGS[field]}: {wanted} here, {found} in {source.path}")
    if arguments.vocab_file and newest is None:
        raise RunError(f"--vocab-file: the draft in {source.path} has its vocabulary")
    return draft


def _new_shape(arguments: argparse.Namespace, asked: dict[str, Any], verifier: FrozenVerifier) -> DraftConfig:
    decoder = verifier.model.config.decoder
    if arguments.vocab_file:
        tokens = read_vocabulary(arguments.vocab_file, decoder.vocab_size, asked.get("draft_vocab_size"))
        asked = {**asked, "draft_vocab_size": len(tokens)}
    mask = asked.pop("mask_token_id", verifier.tokenizer.mask_token_id)
    if mask is None:
        raise ValueError("the verifier's tokenizer has no mask token; give --mask-token-id")
    return new_shape(
        arguments.target, decoder, mask_token_id=mask, layers=asked.pop("num_hidden_layers", None),
        aux=asked.pop("aux_hidden_state_layer_ids", None), **{"block_size": PUBLISHED_BLOCK_SIZE, **asked},
    )  # fmt: skip


def run_facts(
    settings: DraftSettings, arguments: argparse.Namespace, verifier: FrozenVerifier, processes: int
) -> dict[str, Any]:
    """What a resumed run must share beside its data, JSON-ready."""
    recipe = asdict(settings)
    # Matters of memory, not of what is learned.
    del recipe["extractor_batch"], recipe["gradient_checkpointing"]
    loss = {f"loss.{name}": value for name, value in recipe.pop("loss").items()}
    source = {
        "loss.terms": settings.loss.of(arguments.target),
        "family": arguments.target,
        "responses": arguments.responses,
        "verifier": verifier.fingerprint(),
        "processes": processes,
    }
    return {**recipe, **loss, **source}


def build_trainer(
    draft: TrainableDraft | DraftConfig,
    verifier: FrozenVerifier,
    settings: DraftSettings,
    train: Sequence[Sample],
    processes: Processes = ALONE,
    vocabulary: Path | None = None,
) -> DraftTrainer:
    """The trainer of `draft`, which is made first where there is only its shape, with the `vocabulary` of a file.

    Raises `ValueError` when no training sample has room for an anchor.
    """
    if isinstance(draft, DraftConfig):
        size, draft_size = draft.vocab_size, draft.draft_vocab_size
        kept = read_vocabulary(vocabulary, size, draft_size) if vocabulary else None
        responses = (sample.response for sample in train)
        draft = new_draft(draft, verifier.table, responses, settings.seed, kept)
    least = draft.config.draft_length + 1 if settings.whole_blocks else 2
    if not any(len(sample.response) >= least for sample in train):
        raise ValueError(
            f"no training sample has a response of {least} tokens, so there is nothing to predict"
        )
    extractor = Extractor(verifier.model, draft.config.aux_hidden_state_layer_ids)
    return DraftTrainer(draft, extractor, settings, train, processes)
