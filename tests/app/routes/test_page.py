"""`/`: the page's files, open to everyone, from nowhere else, under a proxy's prefix, and off when asked."""

from __future__ import annotations

import re

import pytest

from app.drafts.report import Sequences
from app.routes.page import FOLDER
from tests.app.conftest import served
from tests.app.fake_engine import FakeEngine
from tests.app.routes.test_documentation import Page

pytestmark = pytest.mark.anyio

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


async def test_every_file_is_served_as_what_it_is() -> None:
    async with served() as client:
        index = await client.get("/")
        for path in FOLDER.iterdir():
            reply = await client.get(f"/page/{path.name}")
            assert reply.headers["content-type"].startswith(TYPES[path.suffix])
            assert reply.content == path.read_bytes()
            assert reply.headers["content-security-policy"].startswith("default-src 'self'")
            again = await client.get(f"/page/{path.name}", headers={"If-None-Match": reply.headers["etag"]})
            assert again.status_code == 304 and not again.content
        icon = await client.get("/favicon.ico")
        assert icon.content == (FOLDER / "icon.svg").read_bytes()
        assert icon.headers["content-type"].startswith("image/svg+xml")
        assert (await client.head("/")).status_code == 200
        assert (await client.get("/page/nothing.js")).json()["error"]["code"] == 404
        assert (await client.get("/page/..%2froutes%2fpage.py")).status_code == 404
    assert index.headers["content-security-policy"].startswith("default-src 'self'")
    assert index.headers["content-type"].startswith("text/html")


async def test_nothing_is_loaded_from_elsewhere() -> None:
    """Neither by the page nor by its files, and nothing becomes HTML, style or code that was not in them."""
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import|url\(", text), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", text
        ), path
        for name in re.findall(r'from "(.+?)"', text):
            assert (FOLDER / name).is_file(), (path, name)
    index = (FOLDER / "index.html").read_text()
    assert "style=" not in index and not re.search(r"\son\w+=", index)
    assert all(
        link in ("docs", "metrics")
        for link in Page(re.sub(r"<(link|input|button)[^>]*>|</button>", "", index)).links
    )


def test_files_are_small() -> None:
    for path in FOLDER.iterdir():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path.name


async def test_off() -> None:
    async with served(page=False) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/page/main.js")).status_code == 404
    async with served(page=False, api_keys="secret") as client:
        assert (await client.get("/")).status_code == 401


async def test_its_files_need_no_key_and_nothing_else_is_open() -> None:
    async with served(api_keys="secret") as client:
        for path in ("/", "/page/main.js", "/favicon.ico"):
            assert (await client.get(path)).status_code == 200
        for path in ("/drafts", "/drafts/stats", "/docs", "/page", "/pages", "/page/../drafts"):
            assert (await client.get(path)).status_code == 401, path


async def test_under_a_prefix() -> None:
    """A base says what its paths are relative to; without a prefix they are relative to the address."""
    async with served(root_path="/t5'&") as client:
        text = (await client.get("/")).text
        assert '<base href="/t5&#x27;&amp;/">' in text
        assert (await client.get("/page/main.js")).status_code == 200
        assert (await client.get("/t5'&/page/main.js")).status_code == 200
    async with served() as client:
        assert "<base" not in (await client.get("/")).text


async def test_what_the_page_needs_of_the_api() -> None:
    async with served(FakeEngine(k=3)) as client:
        loaded = (await client.get("/drafts")).json()
        assert "T5GEMMA_ALLOW_SWITCH" in loaded["switch_refusal"]
        assert (await client.get("/drafts/stats")).json()["sequences"] == {"running": 0, "waiting": 0}
    async with served(FakeEngine(k=3), allow_switch=True) as client:
        assert (await client.get("/drafts")).json()["switch_refusal"] is None
    async with served(FakeEngine(k=3), allow_switch=True, short_block=True) as client:
        assert "T5GEMMA_SHORT_BLOCK" in (await client.get("/drafts")).json()["switch_refusal"]
    async with served(FakeEngine(), allow_switch=True) as client:
        assert "no draft is served" in (await client.get("/drafts")).json()["switch_refusal"]


def test_who_runs_and_who_waits() -> None:
    assert Sequences.of(3, 4) == Sequences(running=3, waiting=0)
    assert Sequences.of(7, 4) == Sequences(running=4, waiting=3)
