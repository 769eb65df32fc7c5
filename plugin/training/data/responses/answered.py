"""Samples with the verifier's answers in place of their responses: those that the file has, and new ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from plugin.training.data.responses.store import ResponseFile, prompt_hash
from plugin.training.data.samples import Sample

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES: Final = 10.0


class Answers(Protocol):
    """Who answers: greedily, under the sampling that serving has, end token included where it was reached."""

    def __call__(self, prompts: Sequence[list[int]], max_new_tokens: int) -> Iterable[tuple[int, list[int]]]:
        """(number of the prompt, response), in the order in which they are ready. Raises `DataError`."""


def verifier_responses(
    samples: Sequence[Sample],
    answers: Answers,
    file: Path,
    fingerprint: str,
    max_new_tokens: int,
    end_ids: Collection[int],
    console: Console | None = None,
) -> tuple[list[Sample], dict[str, Any]]:
    """`samples` with responses of at most `max_new_tokens` tokens, and what is to be told of them, JSON-ready.

    Prompts that `file` answers are not asked again, equal ones once. A response that does not end in one of the
    `end_ids` counts as cut. Raises `DataError` as `ResponseFile` and `answers`.
    """
    header = {"verifier": fingerprint, "sampling": "greedy", "max_new_tokens": max_new_tokens}
    kept = ResponseFile(file, header)
    asked = {prompt_hash(sample.prompt): sample.prompt for sample in samples}
    missing = [prompt for name, prompt in asked.items() if name not in kept.known]
    if len(missing) < len(asked):
        logger.info("%s: %d of %d responses are there", file, len(asked) - len(missing), len(asked))
    if missing:
        made = answers(missing, max_new_tokens)
        kept.add((missing[number], ids) for number, ids in _told(made, len(missing), console))
    answered = [_answered(sample, kept.known[prompt_hash(sample.prompt)], end_ids) for sample in samples]
    digest = hashlib.sha256()
    for sample in answered:
        digest.update(json.dumps([sample.prompt, sample.response]).encode() + b"\n")
    return answered, {**header, "prompts": len(asked), "sha256": digest.hexdigest()}


def _answered(sample: Sample, response: list[int], end_ids: Collection[int]) -> Sample:
    cut = not response or response[-1] not in end_ids
    return dataclasses.replace(sample, response=response, response_cut=cut)


def _told(
    answers: Iterable[tuple[int, list[int]]], total: int, console: Console | None
) -> Iterator[tuple[int, list[int]]]:
    """Passes them on and says how far it is, how fast and how long still: a bar on a terminal, lines in a log."""
    console = console or Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("verifier's responses", total=total)
    began = last_line = None
    done = tokens = 0
    with bar:
        for number, response in answers:
            now = time.monotonic()
            if began is None:  # what came before was the start of an engine
                began = last_line = now
            done, tokens = done + 1, tokens + len(response)
            seconds = max(now - began, 1e-9)
            words = f"{tokens / seconds:,.0f} tokens/s" if seconds > 1 else "responses"
            bar.update(task, completed=done, description=f"verifier's responses  {words}")
            assert last_line is not None
            if not console.is_terminal and (done == total or now - last_line >= _SECONDS_BETWEEN_LINES):
                last_line = now
                left = timedelta(seconds=round(seconds / done * (total - done)))
                logger.info("verifier's responses: %d/%d  %s  %s left", done, total, words, left)
            yield number, response
