"""Reading the settings: from the environment and a `.env` file, with every refusal worded for a person.

pydantic-settings ignores names that it does not know, so a misspelt variable would silently do nothing; here it is
refused with the nearest name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dotenv import dotenv_values
from pydantic import ValidationError

from app.settings import PREFIX, Settings, SettingsError, variable

_UVICORN_FLAGS = {"HOST": "--host", "PORT": "--port", "WORKERS": "--workers", "LOG_LEVEL": "--log-level"}


def load_settings(env_file: Path | str | None = ".env", **overrides: Any) -> Settings:
    """Settings from the environment and `env_file` (the environment wins); empty means unset.

    Args:
        env_file: dotenv file, may be missing; None reads none.
        overrides: field values that win over both.

    Raises:
        SettingsError: one line with the unknown variable and its nearest, or each value refused and why.
    """
    in_file = dotenv_values(env_file, encoding="utf-8") if env_file is not None else {}
    _refuse_unknown([*os.environ, *in_file])
    try:
        return Settings(_env_file=env_file, _env_file_encoding="utf-8", **overrides)
    except ValidationError as error:
        given = {name.upper(): value for name, value in [*in_file.items(), *os.environ.items()]}
        given |= {variable(field): value for field, value in overrides.items()}
        raise SettingsError("; ".join(_line(detail, given) for detail in error.errors())) from None


def _refuse_unknown(names: Iterable[str]) -> None:
    known = [field.upper() for field in Settings.model_fields]
    for name in names:
        asked = name.upper().removeprefix(PREFIX)
        if not name.upper().startswith(PREFIX) or asked in known:
            continue
        hint = "`t5gemma2 serve --help` names them all"
        if flag := _UVICORN_FLAGS.get(asked):
            hint = f"use uvicorn's {flag}"
        elif nearest := difflib.get_close_matches(asked, known, n=1):
            hint = f"did you mean {variable(nearest[0])}?"
        raise SettingsError(f"{name} is not a setting: {hint}")


def _line(detail: Any, given: Mapping[str, object]) -> str:
    """One refused value in words: variable, value (never of a secret), reason and range."""
    field = str(detail["loc"][0])
    reason = detail["msg"].removeprefix("Value error, ")
    rules = Settings.model_fields[field].metadata
    words = {"gt": "above", "ge": "at least", "le": "at most"}
    bounds = [(name, getattr(rule, name)) for name in words for rule in rules if hasattr(rule, name)]
    limits = " and ".join(f"{words[name]} {limit}" for name, limit in bounds)
    value = "" if field == "api_keys" else f"={str(given.get(variable(field)))!r}"
    return f"{variable(field)}{value}: {reason}" + (f" (range: {limits})" if limits else "")
