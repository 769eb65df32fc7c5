"""What a newcomer reads once the server is ready (N26)."""

from __future__ import annotations

import json
import logging
import shlex

import pytest

from app.process.address import ListeningAddress, invitation


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("127.0.0.1", 8000, "http://127.0.0.1:8000"),
        ("0.0.0.0", 80, "http://localhost:80"),
        ("::", 1, "http://localhost:1"),
        ("::1", 8000, "http://[::1]:8000"),
    ],
)
def test_the_address_is_uvicorns(host: str, port: int, url: str) -> None:
    address = ListeningAddress()
    address.watch()
    try:
        log = logging.getLogger("uvicorn.error")
        log.error("something %s", "else")
        assert address.url is None
        log.error("Uvicorn running on %s://%s:%d (Press CTRL+C to quit)", "http", host, port)
        assert address.url == url
    finally:
        address.forget()
    assert address not in logging.getLogger("uvicorn.error").filters


@pytest.mark.parametrize("keys", [True, False])
def test_the_invitation_can_be_pasted_into_a_shell(keys: bool) -> None:
    line = invitation("http://localhost:8000", "What is 2 + 2?", keys)
    command, _, documentation = line.removeprefix("try: ").partition(" · documentation: ")
    words = shlex.split(command)
    assert words[:3] == ["curl", "-s", "http://localhost:8000/v1/completions"]
    assert json.loads(words[words.index("-d") + 1])["prompt"] == "What is 2 + 2?"
    assert ("Authorization: Bearer KEY" in words) == keys
    assert documentation == "http://localhost:8000/docs" and "\n" not in line
    assert " · live page: http://localhost:8000/ · " in invitation("http://localhost:8000", "", keys, True)
