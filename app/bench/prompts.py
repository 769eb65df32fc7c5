"""Prompt sets: read from local JSONL, the hub, or the demo's own generator, and fixed by a hash.

The project holds no benchmark data. Prompts are sent as they are in the set unless a template is given; every turn of
a conversation that is given as a list is a prompt of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from app.bench.errors import BenchError
from plugin.training.data.problems.generate import take

PROBLEMS = "problems"
PROBLEM_COUNT = 200
PLACEHOLDER = "{prompt}"


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a set lies on the hub, and the field that holds its prompts there and in its JSONL files."""

    dataset: str
    config: str | None
    split: str
    fields: tuple[str, ...]


SETS: dict[str, Hub] = {
    "gsm8k": Hub("openai/gsm8k", "main", "test", ("question",)),
    "humaneval": Hub("openai/openai_humaneval", None, "test", ("prompt",)),
    "math500": Hub("HuggingFaceH4/MATH-500", None, "test", ("problem",)),
    "mbpp": Hub("google-research-datasets/mbpp", "full", "test", ("text", "prompt")),
    "mtbench": Hub("HuggingFaceH4/mt_bench_prompts", None, "train", ("prompt", "turns")),
    "ultrachat": Hub("HuggingFaceH4/ultrachat_200k", None, "test_sft", ("prompt",)),
}
_ANY_SET = ("prompt", "question", "text")


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts that were used, in order, and where they came from."""

    name: str
    source: str
    template: str
    prompts: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Of the prompts as used, each as a JSON string on its own line: the same whatever file they came from."""
        digest = hashlib.sha256()
        for prompt in self.prompts:
            digest.update(json.dumps(prompt).encode() + b"\n")
        return digest.hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.source,
            "template": self.template,
            "prompts": len(self.prompts),
            "sha256": self.sha256,
        }


def load(text: str, count: int | None, seed: int, templates: Mapping[str, str]) -> PromptSet:
    """The set that `NAME` (hub or generator) or `NAME=PATH` (JSONL) means.

    Args:
        text: the flag's value.
        count: the first so many prompts; None is the whole set, or 200 of the endless generator.
        seed: of the generator.
        templates: set name -> text in which `{prompt}` stands for the prompt.

    Raises:
        BenchError: naming the set or the file and line.
    """
    name, equals, path = text.partition("=")
    template = templates.get(name, PLACEHOLDER)
    if PLACEHOLDER not in template:
        raise BenchError(f"--template {name}: {template!r} has no {PLACEHOLDER}")
    if equals:
        source, rows = Path(path).name, _rows(Path(path))
    elif name == PROBLEMS:
        source = f"plugin.training.data.problems.generate, seed {seed}"
        rows = _problems(count or PROBLEM_COUNT, seed)
    elif name in SETS:
        source, rows = _hub(SETS[name])
    else:
        known = ", ".join([PROBLEMS, *SETS])
        raise BenchError(f"--data {text}: write NAME=PATH, or one of {known}")
    fields = SETS[name].fields if name in SETS else _ANY_SET
    prompts = tuple(template.replace(PLACEHOLDER, prompt) for prompt in islice(_prompts(rows, fields), count))
    if not prompts:
        raise BenchError(f"--data {text}: holds no prompt")
    return PromptSet(name, source, template, prompts)


Row = tuple[str, Mapping[str, Any]]
"""Where a row stands, for errors, and the row."""


def _prompts(rows: Iterable[Row], fields: tuple[str, ...]) -> Iterator[str]:
    for where, row in rows:
        value = next((row[field] for field in fields if field in row), None)
        for turn in value if isinstance(value, list) else [value]:
            if not isinstance(turn, str) or not turn.strip():
                raise BenchError(f"{where}: no text in {' or '.join(fields)}")
            yield turn


def _rows(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}:{number}", _row(f"{path}:{number}", line)
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: {error}") from None


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise BenchError(f"{where}: no JSON: {error}") from None
    if not isinstance(row, dict):
        raise BenchError(f"{where}: {type(row).__name__} instead of an object")
    return row


def _problems(count: int, seed: int) -> Iterator[Row]:
    """Those of the split that no model of the demo was trained on."""
    for number, problem in enumerate(take(seed, "fresh", count)):
        yield f"problem {number}", {"prompt": problem.question}


def _hub(hub: Hub) -> tuple[str, Iterator[Row]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise BenchError(
            "sets from the hub need the package datasets (pip install 't5gemma2-serving[bench]'), or give NAME=PATH"
        ) from None
    try:
        data = load_dataset(hub.dataset, hub.config, split=hub.split)
    except Exception as error:  # the hub's client raises many kinds
        raise BenchError(f"{hub.dataset} cannot be loaded: {type(error).__name__}: {error}") from None
    source = f"{hub.dataset}{f'/{hub.config}' if hub.config else ''} {hub.split}"
    return source, ((f"{hub.dataset} row {number}", row) for number, row in enumerate(data))
