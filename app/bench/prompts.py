"""Prompt sets: read from local JSONL, the hub, or the demo's own generator, and fixed by a hash.

The project holds no benchmark data. Prompts are sent as they are in the set unless a template is given; every turn of
a conversation that is given as a list is a prompt of its own. `published` makes of a set what the published drafts were
measured on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from app.bench.errors import BenchError
from plugin.training.data.pairs import Columns, DataError, Unusable
from plugin.training.data.problems.generate import take
from plugin.training.data.sources import load_split, read_jsonl

PROBLEMS = "problems"
PROBLEM_COUNT = 200
PLACEHOLDER = "{prompt}"


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a set lies on the hub, and the field that holds its prompts there and in its JSONL files.

    As the published drafts were measured: in which `template`, on how many prompts (None: all), and whether a prompt is
    the whole `conversation` before the last answer, cut to `PUBLISHED_PROMPT_TOKENS`.
    """

    dataset: str
    config: str | None
    split: str
    fields: tuple[str, ...]
    template: str = PLACEHOLDER
    count: int | None = None
    conversation: bool = False


_STEPS = "Solve the problem step by step.\n\n"
SETS: dict[str, Hub] = {
    "gsm8k": Hub("openai/gsm8k", "main", "test", ("question",), f"{_STEPS}Question: {{prompt}}\nAnswer:"),
    "humaneval": Hub("openai/openai_humaneval", None, "test", ("prompt",)),
    "math500": Hub(
        "HuggingFaceH4/MATH-500", None, "test", ("problem",), f"{_STEPS}Problem: {{prompt}}\nAnswer:"
    ),
    "mbpp": Hub(
        "google-research-datasets/mbpp",
        "full",
        "test",
        ("text", "prompt"),
        "Write a Python solution for the following task.\n\n{prompt}\n\n```python\n",
    ),
    "mtbench": Hub("HuggingFaceH4/mt_bench_prompts", None, "train", ("prompt", "turns")),
    "ultrachat": Hub(
        "HuggingFaceH4/ultrachat_200k", None, "test_sft", ("prompt",), count=5000, conversation=True
    ),
}
_ANY_SET = ("prompt", "question", "text")
PUBLISHED_PROMPT_TOKENS = 2048 - 128
"""What 128 output tokens leave of 2048."""

Row = tuple[str, Mapping[str, Any]]
"""Where a row stands, for errors, and the row."""

Cut = Callable[[str, int], str]
"""A text cut to its first so many tokens, the start token among them."""


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
    name = text.partition("=")[0]
    template = templates.get(name, PLACEHOLDER)
    if PLACEHOLDER not in template:
        raise BenchError(f"--template {name}: {template!r} has no {PLACEHOLDER}")
    fields = SETS[name].fields if name in SETS else _ANY_SET
    return _read(text, count, seed, template, lambda rows: _prompts(rows, fields))


def named_templates(pairs: Iterable[str], data: Sequence[str]) -> dict[str, str]:
    """Set name -> template from `NAME=TEXT` pairs, in which `\\n` stands for a new line; `data` are the sets' flags.

    Raises:
        BenchError: a pair is none, or its set is not among them.
    """
    templates = {}
    for pair in pairs:
        name, equals, template = pair.partition("=")
        if not equals:
            raise BenchError(f"--template {pair}: write NAME=TEXT")
        if name not in {flag.partition("=")[0] for flag in data}:
            raise BenchError(f"--template {name}: no such --data")
        templates[name] = template.replace("\\n", "\n")
    return templates


def published(text: str, count: int | None, cut: Cut) -> PromptSet:
    """The set that `NAME` or `NAME=PATH` means, as the published drafts were measured on it; `count` as of `load`.

    Raises:
        BenchError: as `load`, and for a set that is none of theirs.
    """
    name = text.partition("=")[0]
    if (hub := SETS.get(name)) is None:
        raise BenchError(f"--published --data {name}: the published sets are {', '.join(SETS)}")
    most = min((number for number in (count, hub.count) if number is not None), default=None)
    if not hub.conversation:
        return _read(text, most, 0, hub.template, lambda rows: _prompts(rows, hub.fields))
    return _read(
        text, most, 0, hub.template,
        lambda rows: (cut(prompt, PUBLISHED_PROMPT_TOKENS) for prompt in _conversations(rows)),
    )  # fmt: skip


def _read(
    text: str,
    count: int | None,
    seed: int,
    template: str,
    prompts_of: Callable[[Iterable[Row]], Iterator[str]],
) -> PromptSet:
    name, equals, path = text.partition("=")
    try:
        source, rows = _rows(name, Path(path) if equals else None, count, seed)
        found = islice(prompts_of(rows), count)
        prompts = tuple(template.replace(PLACEHOLDER, prompt) for prompt in found)
    except DataError as error:
        raise BenchError(str(error)) from None
    if not prompts:
        raise BenchError(f"--data {text}: holds no prompt")
    return PromptSet(name, source, template, prompts)


def _prompts(rows: Iterable[Row], fields: tuple[str, ...]) -> Iterator[str]:
    for where, row in rows:
        value = next((row[field] for field in fields if field in row), None)
        for turn in value if isinstance(value, list) else [value]:
            if not isinstance(turn, str) or not turn.strip():
                raise BenchError(f"{where}: no text in {' or '.join(fields)}")
            yield turn


def _conversations(rows: Iterable[Row]) -> Iterator[str]:
    """What stands before the last answer of each: lines `User: ...` and `Assistant: ...`, then `Assistant:`."""
    for where, row in rows:
        try:
            yield Columns().texts(row)[0]
        except (Unusable, ValueError) as error:
            raise BenchError(f"{where}: {error}") from None


def _rows(name: str, path: Path | None, count: int | None, seed: int) -> tuple[str, Iterable[Row]]:
    """Where the rows of a set come from, and the rows."""
    if path is not None:
        return path.name, ((f"{path}:{number}", row) for number, row in read_jsonl(path))
    if name == PROBLEMS:
        # Those of the split that no model of the demo was trained on.
        problems = enumerate(take(seed, "fresh", count or PROBLEM_COUNT))
        rows = ((f"problem {number}", {"prompt": problem.question}) for number, problem in problems)
        return f"plugin.training.data.problems.generate, seed {seed}", rows
    if name not in SETS:
        raise BenchError(f"--data {name}: write NAME=PATH, or one of {', '.join([PROBLEMS, *SETS])}")
    hub = SETS[name]
    data = load_split(name, hub.dataset, hub.config, hub.split, extra="bench")
    source = f"{hub.dataset}{f'/{hub.config}' if hub.config else ''} {hub.split}"
    return source, ((f"{hub.dataset} row {number}", row) for number, row in enumerate(data))
