"""The table of settings for the documentation, made from the code so that it cannot say anything else.

python -m app.config.settings_reference        # Markdown on standard output
"""

from __future__ import annotations

from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from app.config.settings import Settings, variable

UNITS: dict[str, str] = {
    "k": "tokens",
    "k_floor": "tokens",
    "k_ceiling": "tokens",
    "baseline_share": "share",
    "max_model_len": "tokens",
    "max_encoder_len": "tokens",
    "max_num_seqs": "sequences",
    "max_num_batched_tokens": "tokens",
    "gpu_memory_utilization": "share",
    "kv_cache_memory_bytes": "bytes",
    "encoder_cache_bytes": "bytes",
    "max_encoder_tokens_per_step": "tokens",
    "seed": "–",
    "data_parallel_size": "engines",
    "max_queued_requests": "sequences",
    "request_timeout_s": "seconds",
    "hang_timeout_s": "seconds",
    "max_body_bytes": "bytes",
    "shutdown_grace_s": "seconds",
    "stats_window_s": "seconds",
}
"""Of every setting that is a number."""

_TYPES: dict[Any, str] = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "folder"}


def table() -> str:
    """Every setting in the order of the class: type with its range, default, unit, and what its description says."""
    rows = ["| variable | type | default | unit | meaning |", "|---|---|---|---|---|"]
    for name, info in Settings.model_fields.items():
        meaning = (info.description or "").replace("|", "\\|")
        unit = UNITS.get(name, "–")
        rows.append(f"| `{variable(name)}` | {type_of(info)} | {default_of(info)} | {unit} | {meaning} |")
    return "\n".join(rows) + "\n"


def type_of(info: FieldInfo) -> str:
    """A field's type in words, with its range: `integer, 1 ... 64`."""
    kind = info.annotation
    if get_origin(kind) in (Union, UnionType):
        kind, *others = (part for part in get_args(kind) if part is not type(None))
        if others:
            return f"{_TYPES[kind]}, from 1, or {', '.join(map(str, get_args(others[0])))}"
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return "comma list"
    return f"{_TYPES[kind]}{_range(info)}"


def _range(info: FieldInfo) -> str:
    limits = {
        name: getattr(rule, name)
        for rule in info.metadata
        for name in ("gt", "ge", "le")
        if hasattr(rule, name)
    }
    match limits:
        case {"ge": least, "le": most}:
            return f", {least} ... {most}"
        case {"gt": below, "le": most}:
            return f", above {below}, at most {most}"
        case {"ge": least}:
            return f", from {least}"
        case {"gt": below}:
            return f", above {below}"
    return ""


def default_of(info: FieldInfo) -> str:
    """A field's default as the environment would have it; `unset` where there is none."""
    if info.default is None or info.default == ():
        return "unset"
    return str(info.default).lower() if isinstance(info.default, bool) else str(info.default)


if __name__ == "__main__":
    print(table(), end="")
