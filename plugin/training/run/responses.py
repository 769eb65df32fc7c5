"""The verifier's own greedy answers as training data, kept beside the run so that they are made once.

A draft is judged by how often it says what the verifier would have said, and learns that best from what it did say.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from plugin.training.data.samples import Sample
from plugin.training.run.folder import RunError
from plugin.training.verifier.frozen_verifier import FrozenVerifier
from plugin.training.verifier.greedy import greedy_responses

logger = logging.getLogger(__name__)

FILE: Final = "responses.jsonl"


def verifier_responses(
    verifier: FrozenVerifier,
    samples: Sequence[Sample],
    max_new_tokens: int,
    batch_size: int,
    folder: Path,
) -> list[Sample]:
    """`samples` with the verifier's greedy responses of at most `max_new_tokens` tokens instead of their own.

    They are appended to `responses.jsonl` in `folder` as they are made, and read from there by the next call. Raises
    `RunError` when the file answers other prompts or holds another verifier's answers.
    """
    file = folder / FILE
    digest = hashlib.sha256(json.dumps([sample.prompt for sample in samples]).encode()).hexdigest()
    header = {"verifier": verifier.fingerprint(), "prompts": digest, "max_new_tokens": max_new_tokens}
    known = _read(file, header)
    if len(known) > len(samples):
        raise RunError(f"{file}: {len(known)} responses for {len(samples)} prompts")
    if known:
        logger.info("%s: %d of %d responses are there", file, len(known), len(samples))
    with file.open("w" if not known else "a", encoding="utf-8") as out:
        if not known:
            out.write(json.dumps(header) + "\n")
        for first in range(len(known), len(samples), batch_size):
            prompts = [sample.prompt for sample in samples[first : first + batch_size]]
            made = greedy_responses(verifier.model, prompts, max_new_tokens, batch_size)
            known += made
            out.writelines(json.dumps(response) + "\n" for response in made)
            out.flush()
            if first // batch_size % 50 == 0:
                logger.info("verifier's responses: %d/%d", len(known), len(samples))
    return [
        dataclasses.replace(sample, response=response)
        for sample, response in zip(samples, known, strict=True)
    ]


def _read(file: Path, header: dict[str, object]) -> list[list[int]]:
    """The whole lines of `file` after its header; what a killed run left of a line is cut off."""
    if not file.exists():
        return []
    lines = file.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        return []
    try:
        found, *responses = [json.loads(line) for line in whole]
    except ValueError as error:
        raise RunError(f"{file}: {error}") from None
    if found != header:
        raise RunError(
            f"{file}: holds responses to other prompts or of another verifier; remove it or use another --out"
        )
    with file.open("r+b") as handle:
        handle.truncate(sum(map(len, whole)))
    return responses
