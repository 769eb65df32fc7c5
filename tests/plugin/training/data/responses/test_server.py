"""Answers of a server over HTTP: in any order, asked again when it is busy, checked to be this verifier's."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from plugin.training.data.pairs import DataError
from plugin.training.data.responses import server as module
from plugin.training.data.responses.server import ServerAnswers

PROMPTS = [[2, 5 + i] for i in range(9)]


@contextmanager
def serving(*replies: tuple[int, dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that gives these replies first, then the prompt's ids and 1; its address, and the bodies that came."""
    bodies: list[dict[str, Any]] = []
    first, lock = iter(replies), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "v"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                bodies.append({**body, "key": self.headers.get("Authorization")})
                status, reply = next(first, (200, {"choices": [{"token_ids": [*body["prompt"], 1]}]}))
            self._send(status, reply)

        def _send(self, status: int, reply: dict[str, Any]) -> None:
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answers(url: str, share: float = 1.0) -> dict[int, list[int]]:
    return dict(ServerAnswers(url, lambda prompt, response: share, at_once=3)(PROMPTS, 8))


def test_every_prompt_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedily, by ids, under the key of the environment, and again when the server is busy (N36)."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    with serving((503, {}), (429, {})) as (url, bodies):
        assert answers(url) == {number: [*prompt, 1] for number, prompt in enumerate(PROMPTS)}
    assert len(bodies) == len(PROMPTS) + 2
    prompt = {
        "model": "v",
        "max_tokens": 8,
        "temperature": 0,
        "return_token_ids": True,
        "key": "Bearer secret",
    }
    assert all(body == {**prompt, "prompt": body["prompt"]} for body in bodies)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((400, {"error": {"message": "too long"}}), "400: .*too long"),
        ((200, {"choices": [{"text": "a"}]}), "gives no token ids"),
    ],
)
def test_what_ends_it(reply: tuple[int, dict[str, Any]], words: str) -> None:
    with serving(reply) as (url, _), pytest.raises(DataError, match=f"^{url}: {words}"):
        answers(url)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(DataError, match=r"^http://127.0.0.1:9: no server that answers: "):
        answers("http://127.0.0.1:9")


def test_answers_of_another_verifier(caplog: pytest.LogCaptureFixture) -> None:
    """Seen in the first few, before hours are spent."""
    with (
        serving() as (url, bodies),
        pytest.raises(DataError, match=r"30% of the first answers' tokens .* another one"),
    ):
        answers(url, 0.3)
    assert len(bodies) < len(PROMPTS)
    with serving() as (url, _), caplog.at_level(logging.WARNING):
        assert len(answers(url, 0.8)) == len(PROMPTS)
    assert "does it serve the same weights" in caplog.text
