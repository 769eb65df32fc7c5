"""One envelope for every error."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import ApiError, Dead, to_api_error
from tests.app.conftest import served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

CASES: list[tuple[str, str, dict[str, Any], int]] = [
    ("POST", "/v1/completions", {"json": {"prompt": "Hi", "n": 0}}, 400),
    ("GET", "/v1/nope", {}, 404),
    ("GET", "/v1/completions", {}, 405),
    ("GET", "/v1/completions/", {}, 404),
    ("POST", "/v1/completions", {"json": {"prompt": "Hi"}}, 500),
]


@pytest.mark.parametrize(("method", "path", "more", "status"), CASES)
async def test_envelope(method: str, path: str, more: dict[str, Any], status: int) -> None:
    """Every error has the one shape, and tells nothing of the inside (A38)."""
    async with served(FakeEngine(fail_after=0)) as client:
        reply = await client.request(method, path, **more)
        body = reply.json()
        assert reply.status_code == status and set(body) == {"error"}
        error = body["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == status
        assert isinstance(error["message"], str) and isinstance(error["type"], str)
        assert "Traceback" not in reply.text and ".py" not in reply.text
        if status == 405:
            assert reply.headers["allow"] == "POST"


def statuses(kind: type[ApiError]) -> list[type[ApiError]]:
    return [kind, *(one for sub in kind.__subclasses__() for one in statuses(sub))]


def test_the_table() -> None:
    """Every row has an error status, and what is to be tried again says when."""
    for kind in statuses(ApiError):
        assert 400 <= kind.status < 600 and kind.type.endswith("Error")
        assert ("Retry-After" in kind.headers) == (kind.status == 503)
    assert isinstance(to_api_error(Dead("x")), Dead)
    assert str(to_api_error(KeyError("secret"))) == "internal server error"
