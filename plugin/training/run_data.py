"""The samples of a run: pairs of its data as token ids, with their own responses or the verifier's."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any

from plugin.training.data.mixture import Mixture
from plugin.training.data.responses.answered import Answers, verifier_responses
from plugin.training.data.responses.engine import EngineAnswers
from plugin.training.data.responses.server import ServerAnswers
from plugin.training.data.responses.store import FILE
from plugin.training.data.samples import Sample, cut_counts, encode, split_samples
from plugin.training.run.folder import RunFolder
from plugin.training.settings import DraftSettings
from plugin.training.verifier.frozen_verifier import FrozenVerifier
from plugin.training.verifier.greedy import end_ids, greedy_share


@dataclass(frozen=True, slots=True)
class RunData:
    """Samples to train and to validate on, and their counts, JSON-ready (a checkpoint's training/data_config.json)."""

    train: list[Sample]
    validation: list[Sample]
    counts: dict[str, Any]


def prepare_data(
    arguments: argparse.Namespace,
    settings: DraftSettings,
    verifier: FrozenVerifier,
    mixture: Mixture,
    folder: RunFolder,
) -> RunData:
    """The pairs as token ids, with the responses that are asked for, split into training and validation."""
    samples = encode(
        verifier.tokenizer, mixture.pairs, verifier.end_id, settings.prompt_length, settings.response_length
    )
    made: dict[str, Any] | None = None
    if arguments.responses == "verifier":
        length = min(arguments.max_new_tokens or settings.response_length, settings.response_length)
        asked = answers(arguments, settings, verifier, folder)
        file, ends = arguments.responses_file or folder.path / FILE, end_ids(verifier.model)
        samples, made = verifier_responses(
            samples, asked, file, verifier.fingerprint(), length, ends, arguments.console
        )
    train, validation = split_samples(samples, settings.train_fraction, settings.seed)
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr((sample.prompt, sample.response)).encode())
    counts = {
        **mixture.counts,
        "responses": arguments.responses,
        "answers": made,
        "cut": cut_counts(verifier.tokenizer, samples),
        "training_samples": len(train),
        "validation_samples": len(validation),
        "tokens_sha256": digest.hexdigest(),
    }
    return RunData(train, validation, counts)


def answers(
    arguments: argparse.Namespace, settings: DraftSettings, verifier: FrozenVerifier, folder: RunFolder
) -> Answers:
    """Who answers in the verifier's name: a server that runs, or vLLM with the verifier's checkpoint."""
    if arguments.responses_server is not None:
        return ServerAnswers(arguments.responses_server, partial(greedy_share, verifier.model))
    on_cpu = next(verifier.model.parameters()).device.type == "cpu"
    log = folder.path / "responses.log"
    return EngineAnswers(verifier.model.name_or_path, settings.prompt_length, log, on_cpu)
