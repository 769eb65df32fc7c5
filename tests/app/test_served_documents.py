"""What the documents say of the server: README its routes, docs/metrics.md its series and fields, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.drafts.report import (
    Acceptance,
    AtK,
    BaselineTime,
    EncoderCache,
    Estimate,
    Position,
    Sequences,
    SpeedupRange,
    Stats,
    StepTime,
    Window,
)
from tests.app.conftest import build, complete, served
from tests.app.fake_engine import FakeEngine
from tests.test_config import names_in_vllm, names_of_metrics

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()


NOT_OFFERED = {"/v1/chat/completions", "/v1/responses", "/v1/embeddings"}


def section(heading: str) -> str:
    """From a heading to the next of its level."""
    level = heading.split()[0]
    (found,) = re.findall(rf"^{re.escape(heading)}\n(.*?)(?=^{level} |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_routes() -> None:
    """With the paths of the examples; a route of one model or completion counts as its collection's."""
    text = (ROOT / "README.md").read_text()
    shown = set(re.findall(r"`(?:GET|POST) (/[\w/]+)`", text)) | set(
        re.findall(r"localhost:8000(/[\w/]+)", text)
    )
    paths = {path.partition("/{")[0] for path in build(FakeEngine()).openapi()["paths"]}
    # Refused, which the README says in words.
    assert shown - {"/v1"} == paths - NOT_OFFERED and "chat template: 404" in text


async def test_own_series() -> None:
    async with served(FakeEngine(k=3)) as client:
        await complete(client)
        lines = (await client.get("/metrics")).text.splitlines()
    shown = {line.split()[2] for line in lines if line.startswith("# TYPE t5gemma_")}
    assert {name for name in shown if not name.endswith("_created")} == set(
        re.findall(r"`(t5gemma_\w+)`", PAGE)
    )


def test_engine_series() -> None:
    engine, known = names_of_metrics(PAGE), names_in_vllm()
    assert engine and engine <= known, engine - known


def test_fields_of_the_statistics() -> None:
    models = (
        Stats,
        Acceptance,
        Window,
        Position,
        AtK,
        Estimate,
        SpeedupRange,
        StepTime,
        BaselineTime,
        EncoderCache,
        Sequences,
    )
    shown = {field for model in models for field in model.model_fields}
    text = section("## `GET /drafts/stats`")
    assert not [field for field in shown if f"`{field}`" not in text]
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) <= shown


async def test_fields_of_what_is_loaded() -> None:
    async with served(FakeEngine(k=3)) as client:
        loaded = (await client.get("/drafts")).json()
    shown = loaded.keys() | loaded["verifier"].keys()
    text = section("## `GET /drafts`")
    assert not [field for field in shown if f"`{field}`" not in text]
    firsts = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    assert {name for first in firsts for name in re.findall(r"`(\w+)`", first)} <= shown
