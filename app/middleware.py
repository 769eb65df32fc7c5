"""What every request passes before its route, each a plain ASGI wrapper: request id, log line, errors, bearer key,
body limit.

Plain ASGI because Starlette's BaseHTTPMiddleware puts a queue between route and socket, which hides a client's leaving
and costs a task switch for each event of a stream.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
import uuid
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import ApiError, BodyTooLarge, Unauthorized, chain, note, reply, to_api_error
from app.logs import event

log = logging.getLogger("app.http")

REQUEST_ID = b"x-request-id"
SPAN = "span"
"""Key of `scope["state"]`: the request's `app.tracing.RequestSpan`, where requests are traced."""
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
POLLED_PATHS = OPEN_PATHS | {"/drafts", "/drafts/stats"}
"""Which probes, scrapers, the live page and `t5gemma2 top` ask every few seconds."""
_LONGEST_PATH = 256
_ID = re.compile(rb"[!-~]{1,256}")


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def route_path(scope: Scope) -> str:
    """The path as the routes see it: without the prefix that a proxy added, and without a closing slash."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path.rstrip("/") or "/"


class Layer:
    """Wraps an application: `http` answers a request, what is none (the lifespan) passes by."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.http if scope["type"] == "http" else self.app)(scope, receive, send)

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class RequestId(Layer):
    """Puts the client's X-Request-Id, or a fresh one, into `scope["state"]["request_id"]` and into the reply.

    The id is an echo for people and logs. It is never used to tell requests apart, since clients may repeat it.
    """

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _header(scope, REQUEST_ID)
        value = given if given is not None and _ID.fullmatch(given) else uuid.uuid4().hex.encode()
        # A state of its own: servers may hand the same dictionary to every request.
        scope["state"] = {**scope.get("state", {}), "request_id": value.decode("ascii")}

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (REQUEST_ID, value)]
            await send(message)

        await self.app(scope, receive, tagged)


class RequestLog(Layer):
    """One line in the log for each request, once its reply has ended, however it did. What layers within know of it
    they put into `scope["state"]["log"]`. What is asked again and again is left out unless it is refused, and the live
    page's files are.
    """

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, state = time.monotonic(), scope["state"]
        state["log"] = told = {"id": state["request_id"]}
        status = 500  # which a cancellation leaves that comes from outside
        sent = 0

        async def watched(message: Message) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
            status = sent
        finally:
            status = state.get("broken", status)
            if not _quiet(route_path(scope), status):
                client = scope.get("client")
                head = {
                    "id": told.pop("id"),
                    "client": client and client[0],
                    "method": scope["method"],
                    "path": scope["path"][:_LONGEST_PATH],
                    "status": status,
                    "ms": round((time.monotonic() - began) * 1000, 1),
                }
                event(log, "request", {**head, **told})


def _quiet(path: str, status: int) -> bool:
    return status in (200, 304, 503) and (path in POLLED_PATHS or path.startswith("/page/"))


class Errors(Layer):
    """Turns what no handler took into the 500 envelope, inside of CORS so that browsers may read it."""

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if not isinstance(error, ApiError):
                log.error("%s %s: %s", scope["method"], route_path(scope), chain(error))
            answer = to_api_error(error)
            if started:
                scope["state"]["broken"] = answer.status
                note(scope, answer)
                raise
            await reply(answer)(scope, receive, send)


class HeadAsGet(Layer):
    """Answers HEAD as GET without the body, which FastAPI, unlike Starlette, does not do by itself."""

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def bodiless(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self.app({**scope, "method": "GET"}, receive, bodiless)


class BearerKeys(Layer):
    """Asks for one of the keys on every path but the probes, the metrics and, with `page`, the live page's files."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], page: bool = False) -> None:
        super().__init__(app)
        self._keys = [key.encode() for key in keys]
        self._page = page

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._open(route_path(scope)) or self._known(scope):
            await self.app(scope, receive, send)
            return
        await reply(Unauthorized("a valid key is needed: Authorization: Bearer KEY"))(scope, receive, send)

    def _open(self, path: str) -> bool:
        return path in OPEN_PATHS or (
            self._page and (path in ("/", "/favicon.ico") or path.startswith("/page/"))
        )

    def _known(self, scope: Scope) -> bool:
        scheme, _, token = (_header(scope, b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        # Every key is compared, so that the time taken tells nothing about which one was near.
        return sum(hmac.compare_digest(token.strip(), key) for key in self._keys) > 0


class BodyLimit(Layer):
    """413 for a body above the limit, from its announced length or, when chunked, as it arrives."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        """`limit` in bytes."""
        super().__init__(app)
        self._limit = limit

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        announced = _header(scope, b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > self._limit:
            await reply(self._error(int(announced)))(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self._limit:
                    raise self._error(seen)
            return message

        await self.app(scope, counted, send)

    def _error(self, size: int) -> BodyTooLarge:
        return BodyTooLarge(f"the body has {size} bytes or more, at most {self._limit} are taken")
