"""Settings that are lists, written with commas."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, SecretStr
from pydantic_settings import NoDecode


def _comma_list(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _keys(value: object) -> object:
    keys = _comma_list(value)
    if isinstance(value, str) and not keys:
        raise ValueError("names no key; unset it to serve without keys")
    return keys


CommaList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_comma_list)]
SecretList = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_keys)]
