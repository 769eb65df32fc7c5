"""What a source spec on the command line means: a list of sources, from a file, a mixture profile or a short form.

| source spec | sources |
|---|---|
| `mine.jsonl`, `mine.jsonl.gz` | the file; rows with `prompt` and `response`, or `messages` |
| `demo:60000` | so many problems of the demo's generator |
| `hf:ORG/NAME`, `hf:ORG/NAME:SPLIT`, `hf:ORG/NAME:CONFIG:SPLIT` | a dataset of the hub with the same columns |
| `mix.toml`, or `t5gemma2_200k` for `config/mixtures/t5gemma2_200k.toml` | all sources of the profile |
| `t5gemma2_200k:ultrachat` | one source of it |

A profile is a list of tables `[[source]]`: `name`, `count`, one of `jsonl` (relative to the profile), `dataset` (with
`config`, `split`, `revision`) and `demo = true`, and the columns (`prompt` and `response`, `messages` or `chat`,
`turn`; see `plugin.training.data.pairs.Columns`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from plugin.training.data.pairs import Columns, DataError
from plugin.training.data.sources import Source

_INSTALLED: Final = Path(__file__).parents[1] / "mixtures"
MIXTURES: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[3] / "config" / "mixtures"
"""The profiles that have a name: beside this file in a wheel, in `config` in a checkout."""

_COLUMN_KEYS: Final = tuple(part.name for part in fields(Columns))
_TYPES: Final[dict[str, type]] = {
    "name": str,
    "count": int,
    "jsonl": str,
    "dataset": str,
    "config": str,
    "split": str,
    "revision": str,
    "demo": bool,
    **dict.fromkeys(_COLUMN_KEYS, str),
}


def sources_of(source_spec: str) -> list[Source]:
    """The sources that a source spec means. Raises `DataError` naming the spec."""
    path = Path(source_spec).expanduser()
    if path.suffix == ".toml":
        return read_profile(path)
    if path.is_file():
        return [Source(path.name, jsonl=path)]
    head, colon, rest = source_spec.partition(":")
    if head == "demo":
        if not rest.isdecimal():
            raise DataError(f"{source_spec}: write demo:N with N problems")
        return [Source("demo", int(rest), demo=True)]
    if head == "hf":
        return [_hub_source(source_spec, rest)]
    profile = Path(head) if head.endswith(".toml") else MIXTURES / f"{head}.toml"
    if not profile.is_file():
        known = ", ".join(sorted(file.stem for file in MIXTURES.glob("*.toml"))) or "none"
        raise DataError(
            f"{source_spec}: no such file, no demo:N, no hf:DATASET and no mixture (known: {known})"
        )
    sources = read_profile(profile)
    if not colon:
        return sources
    chosen = [source for source in sources if source.name == rest]
    if not chosen:
        names = ", ".join(source.name for source in sources)
        raise DataError(f"{source_spec}: {profile.name} has the sources {names}")
    return chosen


def _hub_source(source_spec: str, rest: str) -> Source:
    name, *more = rest.split(":")
    if not name or len(more) > 2 or not all(more):
        raise DataError(f"{source_spec}: write hf:DATASET, hf:DATASET:SPLIT or hf:DATASET:CONFIG:SPLIT")
    config = more[0] if len(more) == 2 else None
    return Source(name, dataset=name, config=config, split=more[-1] if more else "train")


def read_profile(path: Path) -> list[Source]:
    """The sources of a mixture profile. Raises `DataError` naming file, source and key."""
    try:
        profile = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path}: {error}") from None
    tables = profile.pop("source", None)
    if profile or not isinstance(tables, list) or not tables:
        extra = f", not {', '.join(profile)}" if profile else ""
        raise DataError(f"{path}: a profile is a list of [[source]]{extra}")
    sources = [_source(table, path, number) for number, table in enumerate(tables)]
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path}: two sources are called {name}")
    return sources


def _source(table: Mapping[str, Any], path: Path, number: int) -> Source:
    where = f"{path}: source {table.get('name', number)}"
    for key, value in table.items():
        if key not in _TYPES:
            raise DataError(f"{where}: {key} is none of {', '.join(_TYPES)}")
        if type(value) is not _TYPES[key]:
            raise DataError(f"{where}: {key} must be {_TYPES[key].__name__}, is {type(value).__name__}")
    if "name" not in table:
        raise DataError(f"{where}: has no name")
    rest = {key: value for key, value in table.items() if key not in _COLUMN_KEYS}
    if "jsonl" in rest:
        rest["jsonl"] = path.parent / Path(rest["jsonl"]).expanduser()
    try:
        return Source(**rest, columns=Columns(**{key: table[key] for key in _COLUMN_KEYS if key in table}))
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
