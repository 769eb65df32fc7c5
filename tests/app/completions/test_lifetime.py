"""How a request ends before its time: its client leaves, its deadline passes, the queue is full, the engine dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from app.engine import GenerateRequest, InvalidRequest, Sample, Step
from app.errors import ShuttingDown
from app.scope import RequestScope
from tests.app.asgi_client import Connection
from tests.app.conftest import build, complete, events, ready, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


async def until(condition: Callable[[], bool]) -> None:
    """Until it holds; TimeoutError after 10 s."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (nothing tells when it begins to hold)
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("prompt", ["Hi", ["Hi", "there"]])
async def test_client_leaves_a_stream(prompt: Any) -> None:
    """The engine hears at once; nothing is left in flight (A43)."""
    engine = FakeEngine(delay_s=0.01)
    async with ready(build(engine)) as app:
        connection = Connection(app, {"prompt": prompt, "max_tokens": 400, "stream": True})
        await connection.body_parts(2)
        assert engine.running
        await connection.leave()
        assert not engine.running and len(engine.aborted) == len(engine.seen)
        assert app.state.gateway.admission.in_flight == 0 and not app.state.gateway.running


@pytest.mark.parametrize("stream", [False, True])
async def test_client_leaves_while_waiting(stream: bool) -> None:
    """Also before the first token, streaming or not (A43)."""
    engine = FakeEngine(hold=asyncio.Event())
    async with ready(build(engine)) as app:
        connection = Connection(app, {"prompt": "Hi", "stream": stream})
        await until(lambda: bool(engine.running))
        assert not connection.sent
        await connection.leave()
        assert not engine.running and len(engine.aborted) == 1
        assert app.state.gateway.admission.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_deadline(stream: bool) -> None:
    """504 while a status can be chosen; an error event and `[DONE]` after."""
    engine = FakeEngine(delay_s=0.05)
    async with served(engine, request_timeout_s=1) as client:
        reply = await complete(client, max_tokens=400, stream=stream)
        if stream:
            last = events(reply)[-1]
            assert reply.status_code == 200 and last["error"]["code"] == 504
        else:
            assert (reply.status_code, reply.json()["error"]["type"]) == (504, "GatewayTimeoutError")
        assert engine.aborted and not engine.running


async def test_queue_is_full() -> None:
    """503 with Retry-After beyond batch + queue; what was accepted is served."""
    engine = FakeEngine(hold=asyncio.Event())
    async with served(engine, max_num_seqs=1, max_queued_requests=1) as client:
        accepted = [asyncio.create_task(complete(client)) for _ in range(2)]
        await until(lambda: len(engine.running) == 2)
        refused = await complete(client)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == 503
        alone = await complete(client, ["a", "b", "c"])
        assert (alone.status_code, alone.json()["error"]["param"]) == (400, "prompt")
        engine.hold.set()  # type: ignore[union-attr]
        assert [(await task).status_code for task in accepted] == [200, 200]
        assert (await complete(client)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_refuses(stream: bool) -> None:
    """What only the engine can refuse is still a 400 and no event stream (A22)."""
    engine = FakeEngine(refuse=InvalidRequest("no such grammar", "structured_outputs"))
    async with served(engine) as client:
        reply = await complete(client, stream=stream, structured_outputs={"regex": "["})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "structured_outputs"
        reply = await complete(client, stream=stream, response_format={"type": "json_object"})
        assert reply.json()["error"]["param"] == "response_format"


async def test_a_constraint_that_the_engine_cannot_follow() -> None:
    """What vLLM lets through at the door and its compiler then refuses ends in the engine, and is the client's all the
    same; without a constraint it is the server's.
    """

    class Ending(FakeEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
            yield Step([Sample(0, "", [], None, "error", None, None)], True, None)

    asked = {
        "structured_outputs": {"structured_outputs": {"grammar": "root ::="}},
        "response_format": {"response_format": {"type": "json_object"}},
        None: {},
    }
    for param, fields in asked.items():
        async with served(Ending()) as client:
            for prompt in ("Hi", ["Hi", "Ho"]):
                reply = await complete(client, prompt, **fields)
                assert reply.status_code == (400 if param else 500)
                assert reply.json()["error"]["param"] == param


async def test_engine_fails_before_the_first_token() -> None:
    """A 500 that tells nothing of the inside, streaming or not (A38)."""
    async with served(FakeEngine(fail_after=0)) as client:
        for stream in (False, True):
            reply = await complete(client, stream=stream)
            assert reply.status_code == 500
            error = reply.json()["error"]
            assert error["code"] == 500 and "file" not in error["message"] and "boom" not in reply.text


async def test_engine_fails_in_the_stream() -> None:
    """The stream ends with an error event and `[DONE]`."""
    async with served(FakeEngine(fail_after=3)) as client:
        chunks = events(await complete(client, stream=True))
        assert len(chunks) == 4 and chunks[-1]["error"]["code"] == 500
        assert "boom" not in json.dumps(chunks)


async def test_one_of_a_batch_fails() -> None:
    """The others are ended too, since the request has one answer."""
    engine = FakeEngine(delay_s=0.01)

    def script(request: Any, sample: int) -> list[int]:
        if request.encoder_ids[-1] == 7:
            raise RuntimeError("boom")
        return [5] * 300

    engine.script = script
    async with served(engine) as client:
        reply = await complete(client, [[5], [7], [6]], max_tokens=300)
        assert reply.status_code == 500
        assert not engine.running


async def test_events_arrive_with_their_tokens() -> None:
    """Headers, and each event within 100 ms of its token (A54)."""
    engine = FakeEngine(delay_s=0.2)
    async with ready(build(engine)) as app:
        connection = Connection(app, {"prompt": "Hi", "max_tokens": 4, "stream": True})
        await connection.end()
        head = {name.decode(): value.decode() for name, value in connection.sent[0]["headers"]}
        assert head["content-type"].startswith("text/event-stream")
        assert (head["cache-control"], head["x-accel-buffering"]) == ("no-cache", "no")
        assert "content-length" not in head and "content-encoding" not in head
        bodies = [
            (at, part["body"])
            for at, part in zip(connection.times, connection.sent, strict=True)
            if "body" in part
        ]
        assert len(bodies) == 5 and all(body.endswith(b"\n\n") for _, body in bodies)
        for token_at, (at, _) in zip(engine.step_times, bodies, strict=False):
            assert 0 <= at - token_at < 0.1
        assert engine.step_times[-1] - engine.step_times[0] >= 0.6


async def test_slow_reader_holds_up_nobody() -> None:
    """A reader that stops reading delays its own stream only, and ends at its deadline."""
    async with ready(build(FakeEngine(delay_s=0.001), request_timeout_s=1)) as app:
        slow = Connection(app, {"prompt": "Hi", "max_tokens": 400, "stream": True}, reads=2)
        quick = Connection(app, {"prompt": "Hi", "max_tokens": 20, "stream": True})
        await quick.end()
        await until(lambda: app.state.gateway.admission.in_flight == 0)
        await slow.leave()


HALF = [
    ("/v1/completions", {"prompt": "Hi"}),
    ("/tokenize", {"prompt": "Hi"}),
    ("/detokenize", {"tokens": [5]}),
]


@pytest.mark.parametrize(("path", "body"), HALF)
async def test_stalled_body_has_a_deadline(path: str, body: dict[str, Any]) -> None:
    """Half a body does not hold a request for ever (E10)."""
    async with ready(build(FakeEngine(), request_timeout_s=0.05)) as app:
        connection = Connection(app, body, path, stalls=True)
        await connection.end()
        assert connection.status == 504 and not app.state.gateway.running


@pytest.mark.parametrize(("path", "body"), HALF)
async def test_stalled_body_ends_with_the_grace(path: str, body: dict[str, Any]) -> None:
    """The drain reaches a body that is still being read (E10)."""
    async with ready(build(FakeEngine(), shutdown_grace_s=0.05)) as app:
        connection = Connection(app, body, path, stalls=True)
        await until(lambda: bool(app.state.gateway.running))
        app.state.gateway.drain()
        await connection.end()
        assert connection.status == 503 and not app.state.gateway.running


@pytest.mark.parametrize(("path", "body"), HALF)
async def test_body_ends_while_draining(path: str, body: dict[str, Any]) -> None:
    """The engine is not used by a request whose body came after the signal (E10)."""
    engine = FakeEngine()
    async with ready(build(engine, shutdown_grace_s=30)) as app:
        connection = Connection(app, body, path, stalls=True)
        await until(lambda: bool(app.state.gateway.running))
        app.state.gateway.drain()
        connection.send_rest()
        await connection.end()
        assert connection.status == 503 and not engine.seen


async def test_client_leaves_half_a_body(caplog: pytest.LogCaptureFixture) -> None:
    """A client that leaves before its body is complete is no error of the server's (A43)."""
    async with ready(build(FakeEngine())) as app:
        connection = Connection(app, {"prompt": "Hi"}, stalls=True)
        await until(lambda: bool(app.state.gateway.running))
        connection._parts.clear()
        await connection.leave()
        assert connection.status == 499 and not app.state.gateway.running
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_no_scope_after_the_grace() -> None:
    """What is entered after the end would be ended by nobody (E10)."""
    async with ready(build(FakeEngine())) as app:
        gateway = app.state.gateway
        gateway.drain()
        gateway.interrupt_all()
        with pytest.raises(ShuttingDown):
            async with RequestScope(None, 60, gateway.running):
                raise AssertionError("entered")
