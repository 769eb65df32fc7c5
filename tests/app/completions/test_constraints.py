"""What the engine is told of a constraint: OpenAI's form and vLLM's, and white space in JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import complete, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "integer"}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
COMPACT = {"disable_any_whitespace": True}


async def told(compact: bool = False, **fields: Any) -> Any:
    """The constraint that reaches the engine, of a server whose setting is `compact`."""
    engine = FakeEngine()
    async with served(engine, disable_any_whitespace=compact) as client:
        reply = await complete(client, **fields)
        assert reply.status_code == 200, reply.text
    return engine.seen[-1].sampling.structured_outputs


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": FORM}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
    ],
)
async def test_json_is_compact_where_it_is_asked_for(
    fields: dict[str, Any], constraint: dict[str, Any]
) -> None:
    """By the request, in vLLM's own field beside either form, or by the setting, which the request overrules."""
    own = fields.get("structured_outputs", {})
    assert await told(**fields) == constraint
    assert await told(**{**fields, "structured_outputs": own | COMPACT}) == constraint | COMPACT
    assert await told(compact=True, **fields) == constraint | COMPACT
    loose = await told(
        compact=True, **{**fields, "structured_outputs": own | {"disable_any_whitespace": False}}
    )
    assert loose == constraint | {"disable_any_whitespace": False}
    unsaid = {**fields, "structured_outputs": own | {"disable_any_whitespace": None}}
    assert await told(compact=True, **unsaid) == constraint | COMPACT


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}])
async def test_free_text_stays_free(fields: dict[str, Any]) -> None:
    assert await told(compact=True, **fields) is None


async def test_the_setting_is_about_json_alone() -> None:
    assert await told(compact=True, structured_outputs={"regex": "a b"}) == {"regex": "a b"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"regex": "a", "disable_any_whitespace": True}, "needs json or json_object"),
        ({"json": SCHEMA, "whitespace_pattern": " ?"}, "whitespace_pattern is not supported"),
        (
            {"json": SCHEMA, "disable_additional_properties": True},
            "disable_additional_properties is not supported",
        ),
        ({"disable_any_whitespace": True}, "exactly one of"),
    ],
)
async def test_an_option_that_would_not_be_heard_is_refused(options: dict[str, Any], words: str) -> None:
    engine = FakeEngine()
    async with served(engine) as client:
        error = (await complete(client, structured_outputs=options)).json()["error"]
    assert (error["code"], error["param"]) == (400, "structured_outputs") and words in error["message"]
    assert not engine.seen


async def test_an_option_beside_openais_form_leaves_errors_in_that_form() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["ab"] * 9000}}}
    async with served() as client:
        error = (await complete(client, response_format=form, structured_outputs=COMPACT)).json()["error"]
    assert (error["code"], error["param"]) == (400, "response_format")
