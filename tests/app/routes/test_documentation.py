"""`/docs`: the whole OpenAPI document for people, on a machine without a way out."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from app.completions.request import CompletionRequest
from app.routes.documentation import openapi_page
from tests.app.conftest import build, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


class Page(HTMLParser):
    """Its links, what it loads, its headings' ids, and whether each element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a":
            self.links.append(given["href"] or "")
        elif tag in ("script", "link", "img", "iframe") or "src" in given:
            self.loaded.append(tag)
        if tag == "h2":
            self.ids.add(given["id"] or "")
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def test_nothing_is_loaded_from_elsewhere() -> None:
    async with served() as client:
        reply = await client.get("/docs")
        assert reply.headers["content-type"].startswith("text/html")
        assert (await client.get("/openapi.json")).status_code == 200
        assert (await client.get("/redoc")).status_code == 404
    page = Page(reply.text)
    assert not page.loaded and not page.open
    assert "@import" not in reply.text and "url(" not in reply.text
    # Relative, so that it also holds behind a proxy's prefix.
    assert set(page.links) == {"openapi.json", *(f"#{one}" for one in page.ids)}


def test_every_route_and_field_is_there() -> None:
    app = build(FakeEngine())
    document = app.openapi()
    text = openapi_page(document)
    routes = {f"{method.upper()}{path}" for path, methods in document["paths"].items() for method in methods}
    assert Page(text).ids == routes
    for name in CompletionRequest.model_fields:
        assert f"<td><code>{name}</code></td>" in text
    for name, schema in document["components"]["schemas"].items():
        if not name.startswith("Error"):
            assert f": {name}</h3>" in text, name
        for field in schema.get("properties", {}):
            assert name.startswith("Error") or f"<code>{field}</code>" in text
    assert re.search(r"<code>max_tokens</code></td><td>integer</td><td><code>16</code>", text)


def test_what_it_shows_is_escaped() -> None:
    document = {
        "info": {"title": "<b>", "description": "a `<i>` b"},
        "paths": {"/x": {"get": {"summary": "1 < 2", "responses": {"200": {"description": "&"}}}}},
    }
    text = openapi_page(document)
    assert "<b>" not in text and "a <code>&lt;i&gt;</code> b" in text and "1 &lt; 2" in text
