"""The one table of errors: exception class -> HTTP status and type, and the envelope every one of them is sent in.

Whatever goes wrong between socket and engine ends here, so that a client sees one shape, `code` being the HTTP status:
`{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.engine import EngineDead, EngineFailure, InvalidRequest


class ErrorInfo(BaseModel):
    """What went wrong; `param` names the request field at fault, `code` repeats the HTTP status."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorEnvelope(BaseModel):
    """The body of every error reply."""

    error: ErrorInfo


class ApiError(Exception):
    """An error with a status of its own; the subclasses below are the table's left column."""

    status = 500
    type = "InternalServerError"
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BadRequest(ApiError):
    status, type = 400, "BadRequestError"


class Unauthorized(ApiError):
    status, type = 401, "UnauthorizedError"
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError):
    status, type = 403, "PermissionDeniedError"


class NotFound(ApiError):
    status, type = 404, "NotFoundError"


class Conflict(ApiError):
    status, type = 409, "ConflictError"


class BodyTooLarge(ApiError):
    status, type = 413, "RequestEntityTooLargeError"
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}


class HeadTooLarge(ApiError):
    status, type = 431, "RequestHeaderFieldsTooLargeError"
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}


class NotJson(ApiError):
    status, type = 415, "UnsupportedMediaTypeError"


class ClientGone(ApiError):
    """Nobody reads the reply; the status is for the log alone."""

    status, type = 499, "ClientClosedRequestError"


class Loading(ApiError):
    status, type = 503, "ServiceUnavailableError"
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "5"}


class QueueFull(ApiError):
    status, type = 503, "ServiceUnavailableError"
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "1"}


class ShuttingDown(ApiError):
    status, type = 503, "ServiceUnavailableError"
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "10"}


class Dead(ApiError):
    status, type = 503, "ServiceUnavailableError"
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "30"}


class Deadline(ApiError):
    status, type = 504, "GatewayTimeoutError"


def to_api_error(error: BaseException) -> ApiError:
    """The table's row of any exception; what is unforeseen becomes a 500 that tells nothing of the inside."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return BadRequest(str(error), error.param)
        case ValidationError():
            return from_validation(error)
        case EngineDead():
            return Dead("the engine is dead; the server is about to restart")
        case EngineFailure():
            return ApiError("the engine failed on this request")
        case _:
            return ApiError("internal server error")


def from_validation(error: ValidationError) -> BadRequest:
    """One line naming the first field at fault; the value itself is never repeated."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = [str(part) for part in first["loc"]]
    reason = first["msg"].removeprefix("Value error, ")
    if not path:
        return BadRequest(f"the body cannot be read: {reason}")
    return BadRequest(f"{path[0]}: {reason}", path[0])


def in_one_line(error: BaseException) -> str:
    """What a person needs to know of it. vLLM refuses arguments by pydantic, whose first line holds no reason."""
    if isinstance(error, ValidationError):
        reasons = [detail["msg"] for detail in error.errors(include_url=False, include_input=False)]
        words = "; ".join(" ".join(reason.removeprefix("Value error, ").split()) for reason in reasons)
    else:
        words = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def chain(error: BaseException) -> str:
    """The types of an exception and its causes, and the frames of each; no message, for it may quote a prompt."""
    parts = []
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        where = ", ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
        parts.append(f"{type(cause).__name__} ({where})" if where else type(cause).__name__)
        cause = cause.__cause__
    return " <- ".join(parts)


def envelope(error: ApiError) -> dict[str, Any]:
    """The JSON body of an error."""
    info = ErrorInfo(message=str(error), type=error.type, param=error.param, code=error.status)
    return {"error": info.model_dump()}


def note(scope: Scope, error: ApiError) -> None:
    """For the request's line in the log: which error, and the field at fault. Its message may quote the request."""
    name = type(error).__name__ if type(error) is not ApiError else error.type
    scope.setdefault("state", {}).setdefault("log", {}).update(error=name, param=error.param)


class _ErrorReply(JSONResponse):
    def __init__(self, error: ApiError) -> None:
        super().__init__(envelope(error), error.status, dict(error.headers))
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note(scope, self._error)
        await super().__call__(scope, receive, send)


def reply(error: ApiError) -> JSONResponse:
    """The whole reply of an error: status, headers, envelope; sent, it is noted for the log."""
    return _ErrorReply(error)


def install(app: FastAPI) -> None:
    """Sends every exception of the routes, and 404 and 405 of the router, through the table."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        return reply(to_api_error(error))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        phrase = HTTPStatus(error.status_code).phrase
        kind = phrase.title().replace(" ", "") + "Error"
        info = ErrorInfo(
            message=f"{phrase}: {request.method} {request.url.path}", type=kind, code=error.status_code
        )
        headers = dict(error.headers) if error.headers else None
        return JSONResponse({"error": info.model_dump()}, error.status_code, headers)

    for kind in (ApiError, InvalidRequest, ValidationError, EngineDead, EngineFailure):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(HTTPException, http)


def documented(*kinds: type[ApiError]) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route that may end in these errors, for the OpenAPI document."""
    return {
        kind.status: {"model": ErrorEnvelope, "description": HTTPStatus(kind.status).phrase} for kind in kinds
    }
