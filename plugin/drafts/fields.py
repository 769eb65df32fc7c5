"""Typed reading of a config.json: every refusal names the file, the dotted key and the value."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from plugin.drafts.facts import CheckpointError

_MISSING = object()
_MAX_INTEGER = 2**31 - 1


class Fields:
    """One JSON object of a config file, and where in the file it stands."""

    def __init__(self, values: dict[str, Any], file: str, prefix: str = "") -> None:
        self.values = values
        self.file = file
        self.prefix = prefix

    @classmethod
    def read(cls, file: Path, shown_as: str | None = None) -> Fields:
        """The object in `file`; CheckpointError when it is missing, unreadable or no JSON object."""
        shown = shown_as or str(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise CheckpointError(f"{shown}: cannot be read: {why}") from None
        if text.startswith("version https://git-lfs"):
            raise CheckpointError(
                f"{shown}: is a Git LFS pointer file, not the file itself; run `git lfs pull`"
            )
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{shown}: is no valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{shown}: must hold a JSON object, holds {type(values).__name__}")
        return cls(values, shown)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, key: str, rule: str) -> CheckpointError:
        """The refusal of `key`, to raise."""
        value = self.values.get(key, _MISSING)
        said = "is missing" if value is _MISSING else f"is {json.dumps(value, ensure_ascii=False)[:120]}"
        return CheckpointError(f"{self.file}: {self.prefix}{key} {said}; {rule}")

    def object(self, key: str) -> Fields:
        """The nested object at `key`."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.error(key, "must be an object")
        return Fields(value, self.file, f"{self.prefix}{key}.")

    def first_object(self, key: str, wanted: str) -> Fields:
        """The first object of the list at `key`; a refusal speaks of `wanted` in it."""
        value = self.values.get(key)
        if not isinstance(value, list) or not value or not isinstance(value[0], dict):
            said = f"is not there ({self.prefix}{key} is {value!r})" if key in self.values else "is missing"
            raise CheckpointError(f"{self.file}: {self.prefix}{key}[0].{wanted} {said}; it must be given")
        return Fields(value[0], self.file, f"{self.prefix}{key}[0].")

    def integer(
        self, key: str, at_least: int = 1, default: int | None = None, at_most: int = _MAX_INTEGER
    ) -> int:
        """The whole number at `key` within its bounds; `default` only where the key is absent or null."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise self.error(key, f"must be a whole number of at least {at_least}")
        if value > at_most:
            raise self.error(key, f"must be a whole number of at most {at_most}")
        return value

    def number(self, key: str, *, low: float, at_most: float, above: bool = False) -> float:
        """The finite number at `key`, from `low` on or, with `above`, beyond it."""
        value: Any = self.values.get(key)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # Comparisons alone: they hold for whole numbers of any size and fail for NaN.
        if not number or not low <= value <= at_most or (above and value == low):
            raise self.error(key, f"must be a number {'above' if above else 'from'} {low:g} to {at_most:g}")
        return float(value)

    def optional_integer(self, key: str) -> int | None:
        """As `integer`, None where the key is absent or null."""
        return None if self.values.get(key) is None else self.integer(key)

    def flag(self, key: str, default: bool) -> bool:
        """The boolean at `key`; `default` where the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def text(self, key: str) -> str:
        """The non-empty string at `key`."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "must be a non-empty string")
        return value

    def one_of(self, key: str, known: Collection[str]) -> str:
        """The string at `key`, which must be one of `known`."""
        value = self.text(key)
        if value not in known:
            raise self.error(key, f"must be one of {', '.join(known)}")
        return value

    def optional_text(self, key: str) -> str | None:
        """As `text`, None where the key is absent or null."""
        return None if self.values.get(key) is None else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """The list of strings at `key`."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "must be a list of strings")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """The non-empty list of whole numbers >= 0 at `key`."""
        value = self.values.get(key)
        whole = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
        if not value or not whole:
            raise self.error(key, "must be a non-empty list of whole numbers of at least 0")
        return tuple(value)
