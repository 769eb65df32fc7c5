"""Where pairs come from: a JSONL file, a Hugging Face dataset, the demo's problem generator.

A source opens to `Rows`, which are reached by number, so that a draw does not depend on the order of reading.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugin.training.data.pairs import Columns, DataError
from plugin.training.data.problems.generate import take, wrapped


@dataclass(frozen=True, slots=True)
class Rows:
    """`size` rows; `row(i)` is row number i from 0, `name(i)` its id for errors and pairs, `facts` are JSON-ready."""

    size: int
    row: Callable[[int], Mapping[str, Any]]
    name: Callable[[int], str]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a mixture: exactly one of `jsonl`, `dataset` and `demo`, and how many pairs to take of it.

    `count` None takes every usable row; the demo's generator never ends, so it needs one. Raises `DataError`.
    """

    name: str
    count: int | None = None
    jsonl: Path | None = None
    dataset: str | None = None
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    demo: bool = False
    columns: Columns = field(default_factory=Columns)

    def __post_init__(self) -> None:
        if (self.jsonl is not None) + (self.dataset is not None) + self.demo != 1:
            raise DataError(f"{self.name}: give one of jsonl, dataset and demo")
        if self.count is not None and self.count < 1:
            raise DataError(f"{self.name}: count {self.count} is below 1")
        if self.demo and self.count is None:
            raise DataError(f"{self.name}: count is needed, the generator has no end")

    def open(self, seed: int) -> Rows:
        """The rows; `seed` is the demo generator's. Raises `DataError`."""
        if self.jsonl is not None:
            return jsonl_rows(self.jsonl)
        if self.dataset is not None:
            return hub_rows(self.name, self.dataset, self.config, self.split, self.revision)
        assert self.count is not None
        return demo_rows(self.name, self.count, seed)


def jsonl_rows(path: Path) -> Rows:
    """The objects of a JSONL file, one a line, empty lines and a byte order mark left out; .gz is unpacked.

    Raises `DataError` with file and line for anything else, also in lines that no draw would reach.
    """
    rows = list(read_jsonl(path))
    return Rows(
        len(rows),
        lambda number: rows[number][1],
        lambda number: f"{path.name}:{rows[number][0]}",
        {"kind": "jsonl", "file": path.name},
    )


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of every line that is not empty, one by one. Raises as `jsonl_rows`."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _object(line, f"{path}:{number}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path}: {error}") from None


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: no JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: {type(row).__name__} instead of an object")
    return row


def hub_rows(name: str, dataset: str, config: str | None, split: str, revision: str | None) -> Rows:
    """The rows of one split of a dataset of the hub, or of a folder of data files; ids are `name` and row number.

    `revision` in the facts is the commit that was loaded where the library tells it. Raises as `load_split`.
    """
    data = load_split(name, dataset, config, split, revision)
    facts = {
        "kind": "dataset",
        "dataset": dataset,
        "config": config,
        "split": split,
        "revision": _commit(data) or revision,
        "fingerprint": data._fingerprint,
    }
    return Rows(len(data), lambda number: dict(data[number]), lambda number: f"{name}:{number}", facts)


def load_split(
    name: str, dataset: str, config: str | None, split: str, revision: str | None = None, extra: str = "train"
) -> Any:
    """One split by the library datasets, which our `extra` brings.

    Raises `DataError` when it is missing or the dataset cannot be loaded.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"{name}: needs the package datasets: pip install 't5gemma2-serving[{extra}]', or give JSONL files"
        ) from None
    try:
        return load_dataset(dataset, config, split=split, revision=revision)
    except Exception as error:  # the hub's client raises many kinds
        line = " ".join(str(error).split())
        raise DataError(f"{name}: {dataset} cannot be loaded: {type(error).__name__}: {line[:300]}") from None


def _commit(data: Any) -> str | None:
    """The hub commit in the addresses of the files that were loaded."""
    for address in data.info.download_checksums or {}:
        if found := re.search(r"@([0-9a-f]{40})/", str(address)):
            return found[1]
    return None


def demo_rows(name: str, count: int, seed: int) -> Rows:
    """The first `count` training problems of the demo's generator with `seed`, with its own answers; all wrappings."""
    problems = take(seed, "train", count)
    return Rows(
        count,
        lambda number: {
            "prompt": wrapped(problems[number].question, number),
            "response": problems[number].answer,
        },
        lambda number: f"{name}:{number}",
        {"kind": "demo", "generator_seed": seed},
    )
