"""Reading the settings: from the environment and a `.env` file, with every refusal worded for a person.

pydantic-settings ignores names that it does not know, so a misspelt variable would silently do nothing; here it is
refused with the nearest name. Kubernetes describes each service of a namespace in every container's environment, and
Docker each linked container; what they say of one whose name begins with `t5gemma` looks like our variables and is
none.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from app.config.dotenv_file import ENCODING, Assigned, read
from app.config.settings import PREFIX, Settings, SettingsError, variable

_UVICORN_FLAGS = {"HOST": "--host", "PORT": "--port", "WORKERS": "--workers", "LOG_LEVEL": "--log-level"}
ENTRY_POINT: Final = "t5gemma2"
"""The name of our vLLM plugins."""
FLAGS: Final[set[str]] = set()
"""Variables of the environment that `t5gemma2 serve` wrote there, since it was given them as flags."""
_MISSPELT: Final = 0.8
"""How much alike (difflib's ratio) what follows a misspelt prefix is to a setting before it is taken for one."""
_OTHERS: Final = "TXGEMMA_"
"""The one prefix of another product's that is a slip away from ours."""
_SERVICE: Final = re.compile(
    rf"{PREFIX}([A-Z0-9_]+_)?((SERVICE_HOST|PORT_\d+_(TCP|UDP|SCTP)_ADDR)=[0-9a-fA-F.:]+"
    r"|(SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)_PORT)=\d+"
    r"|PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://\S+|PORT_\d+_(TCP|UDP|SCTP)_PROTO=(tcp|udp|sctp)"
    r"|NAME=/[^/]+/[^/]+|ENV_.*)",
    re.DOTALL,
)
"""`NAME=value` as Kubernetes injects it for a service and Docker for a link, by names and values. Docker passes on the
linked container's own variables, too, as `..._ENV_...`.
"""


def load_settings(env_file: Path | str | None = ".env", **overrides: Any) -> Settings:
    """Settings from the environment and `env_file` (the environment wins); empty or blank means unset.

    Args:
        env_file: dotenv file, may be missing; None reads none.
        overrides: field values that win over both.

    Raises:
        SettingsError: one line with the unknown variable and its nearest, or each value refused and why; with file
            and line where a line is the cause.
    """
    in_file = {} if env_file is None else read(env_file)
    injected = set(service_variables())
    given = {name: Assigned(value, "") for name, value in os.environ.items() if name not in injected}
    for assigned in (in_file, given):
        _refuse_names(assigned)
    try:
        settings = Settings(_env_file=env_file, _env_file_encoding=ENCODING, **overrides)
    except ValidationError as error:
        places = {name.upper(): assigned for name, assigned in [*in_file.items(), *given.items()]}
        places |= {variable(field): Assigned(str(value), "") for field, value in overrides.items()}
        raise SettingsError("; ".join(_line(detail, places) for detail in error.errors())) from None
    settings._origins.update(_origins(in_file, given, overrides))
    return settings


def _origins(
    in_file: Mapping[str, Assigned], given: Mapping[str, Assigned], overrides: Mapping[str, Any]
) -> dict[str, str]:
    """Where each field's value comes from, as pydantic-settings chooses it: the first that is not empty; blank is
    unset.
    """
    sources = [
        {name.upper(): one for name, one in source.items() if one.value} for source in (given, in_file)
    ]
    found = {}
    for field in Settings.model_fields:
        name = variable(field)
        one = next((source[name] for source in sources if name in source), None)
        if field in overrides:
            found[field] = "code"
        elif one is not None and one.value.strip():
            found[field] = one.place or ("flag" if name in FLAGS else "environment")
    return found


def refuse_other_plugins() -> None:
    """`VLLM_PLUGINS` is vLLM's list of the plugins to load; without ours it knows no T5Gemma 2.

    Raises:
        SettingsError: the variable leaves ours out, or the project is on the path but not installed.
    """
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and ENTRY_POINT not in allowed.split(","):
        raise SettingsError(
            f"VLLM_PLUGINS={allowed!r} leaves out {ENTRY_POINT}, without which vLLM cannot load this model;"
            f" unset it, or add {ENTRY_POINT} between commas, without blanks"
        )
    if not entry_points(group="vllm.general_plugins", name=ENTRY_POINT):
        raise SettingsError(f"vLLM finds no plugin {ENTRY_POINT}; install this project (`pip install .`)")


def service_variables() -> list[str]:
    """Names in the environment that Kubernetes or Docker injected for a service; they are no settings."""
    found = {name for name, value in os.environ.items() if _SERVICE.fullmatch(f"{name}={value}")}
    return sorted(found - {variable(field) for field in Settings.model_fields})


def _refuse_names(given: Mapping[str, Assigned]) -> None:
    """Of the names in one place: each that begins as ours, or is nearly one of ours, is one of ours, and set once."""
    known = [variable(field) for field in Settings.model_fields]
    seen: dict[str, str] = {}
    for name, (value, place) in given.items():
        asked, where = name.upper(), f"{place}: " if place else ""
        if asked not in known:
            _refuse_unknown(name, known, where)
            continue
        if any("\udc80" <= character <= "\udcff" for character in value):  # how os.environ holds other bytes
            raise SettingsError(f"{where}{name}: the value is not UTF-8")
        if (other := seen.setdefault(asked, name)) != name:
            raise SettingsError(f"{where}{other} and {name} are the same setting; set one of them")


def _refuse_unknown(name: str, known: list[str], where: str) -> None:
    asked = name.upper()
    if asked.startswith(PREFIX):
        near = difflib.get_close_matches(
            asked.removeprefix(PREFIX), [k.removeprefix(PREFIX) for k in known], n=1
        )
        nearest = [PREFIX + one for one in near]
    else:
        nearest = _meant(asked, known)
        if not nearest:
            return
    hint = "`t5gemma2 serve --help` names them all"
    if flag := _UVICORN_FLAGS.get(asked.removeprefix(PREFIX)):
        hint = f"use uvicorn's {flag}"
    elif nearest:
        hint = f"did you mean {nearest[0]}?"
    raise SettingsError(f"{where}{name} is not a setting: {hint}")


def _meant(name: str, known: list[str]) -> list[str]:
    """The setting that was meant, if the name begins with our prefix but for one slip, in its first letter none, and
    goes on as a setting does. Names of other programs share endings with ours (`TGI_DTYPE`), not beginnings.
    """
    if name[0] != PREFIX[0] or name.startswith(_OTHERS):
        return []
    for length in (len(PREFIX) - 1, len(PREFIX), len(PREFIX) + 1):
        if _one_slip(name[:length], PREFIX):
            rest = [one.removeprefix(PREFIX) for one in known]
            near = difflib.get_close_matches(name[length:], rest, n=1, cutoff=_MISSPELT)
            if near:
                return [PREFIX + near[0]]
    return []


def _one_slip(one: str, other: str) -> bool:
    """One character is left out, added or another, or two neighbours are exchanged."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    one, other = one[same:], other[same:]
    return (
        one[1:] in (other, other[1:])
        or one == other[1:]
        or (one[:2] == other[1::-1] and one[2:] == other[2:])
    )


def _line(detail: Any, given: Mapping[str, Assigned]) -> str:
    """One refused value in words: variable, value (never of a secret), reason and range."""
    field = str(detail["loc"][0])
    reason = detail["msg"].removeprefix("Value error, ")
    rules = Settings.model_fields[field].metadata
    words = {"gt": "above", "ge": "at least", "le": "at most"}
    bounds = [(name, getattr(rule, name)) for name in words for rule in rules if hasattr(rule, name)]
    limits = " and ".join(f"{words[name]} {limit}" for name, limit in bounds)
    text, place = given.get(variable(field), Assigned("", ""))
    value = "" if field == "api_keys" else f"={text!r}"
    return f"{place and place + ': '}{variable(field)}{value}: {reason}" + (
        f" (range: {limits})" if limits else ""
    )
