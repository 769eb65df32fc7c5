"""`create_app`: the FastAPI application around one engine.

Building the application starts nothing. Its lifespan starts the engine in a thread, listens for the signals that end
the process, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPMethod
from types import FrameType
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_fastapi_instrumentator import Instrumentator
from prometheus_fastapi_instrumentator.metrics import Info, default
from pydantic.json_schema import models_json_schema
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from app import errors
from app.completions.request import CompletionRequest
from app.completions.sse import LAST_WORDS_S
from app.config.settings import Settings, SettingsError, variable
from app.drafts.gauges import DraftCollector
from app.drafts.identity import Identity
from app.engine import Engine, EngineFactory, EnginePlan
from app.engine_arguments import check_adaptive_verification
from app.gateway import Gateway
from app.logs import configure
from app.middleware import BearerKeys, BodyLimit, Errors, HeadAsGet, RequestId, RequestLog
from app.process.cpu_process import cpu_build
from app.process.open_files import allow_more
from app.process.output import end_relay
from app.process.uvicorn_command import bound_shutdown
from app.request_head import bound_heads
from app.routes import completions, documentation, drafts, health, models, page, switches, tokenize
from app.routes.switches import ActiveRequest, KRequest
from app.routes.tokenize import DetokenizeRequest, TokenizeRequest
from plugin.drafts.checkpoint import Checkpoints

log = logging.getLogger("app")

BODIES = (CompletionRequest, TokenizeRequest, DetokenizeRequest, KRequest, ActiveRequest)
METHODS = frozenset(HTTPMethod)
CUT_OFF_S = LAST_WORDS_S + 1
"""Seconds after the grace time when clients that have not read the end of their replies are cut off."""
ENGINE_LOST = 1
"""Exit code when the engine failed or died, so that a supervisor starts the server again."""


def vllm_engine(plan: EnginePlan) -> Engine:
    """The production factory; imports vLLM in the loading thread, since that alone takes seconds."""
    from app.vllm_engine import start

    return start(plan)


class _Application(FastAPI):
    """FastAPI whose OpenAPI document has the request bodies that the routes read themselves."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            schema = get_openapi(
                title=self.title, version="1", description=self.description, routes=self.routes
            )
            _, bodies = models_json_schema(
                [(body, "validation") for body in BODIES], ref_template="#/components/schemas/{model}"
            )
            schema.setdefault("components", {}).setdefault("schemas", {}).update(bodies["$defs"])
            for operations in schema["paths"].values():
                for operation in operations.values():
                    # FastAPI writes it wherever there is a parameter; field errors are 400 here.
                    operation["responses"].pop("422", None)
            for unused in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(unused, None)
            self.openapi_schema = schema
        return self.openapi_schema


def create_app(
    settings: Settings, checkpoints: Checkpoints, engine_factory: EngineFactory = vllm_engine
) -> FastAPI:
    """The application that serves `checkpoints` under `settings` with the engine that `engine_factory` builds.

    `app.state.gateway` is the server's state and `app.state.registry` what `/metrics` shows.

    Raises:
        SettingsError: a length of the settings does not fit the checkpoints, adaptive verification cannot work,
            routes are hidden by the root path, or traces are asked for and cannot be made.
    """
    check_adaptive_verification(settings, checkpoints, cpu_build())
    gateway = Gateway(settings, Identity.of(checkpoints, settings), engine_factory)
    configure(settings.log_format)
    app = _Application(
        title="T5Gemma 2 gateway",
        description="Completions with a speculative draft, and the truth about the draft.",
        root_path=settings.root_path or "",
        redirect_slashes=False,
        docs_url=None,  # FastAPI's pages load their scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.gateway = gateway
    for part in (completions, models, drafts, switches, health, tokenize, documentation):
        app.include_router(part.router)
    if settings.page:
        app.include_router(page.router)
    _refuse_hidden_routes(app)
    errors.install(app)
    _wrap(app, settings)
    if settings.otlp_traces_endpoint is not None:
        _trace(app, settings.otlp_traces_endpoint)
    _observe(app, gateway)
    return app


def _refuse_hidden_routes(app: FastAPI) -> None:
    """Under the root path /v1 a request for /v1/models would be taken for one for /models, and be 404."""
    prefix = app.root_path
    if prefix and any(
        f"{route.path}/".startswith(f"{prefix}/") for route in app.routes if isinstance(route, Route)
    ):
        raise SettingsError(
            f"{variable('root_path')}={prefix}: paths of the API begin so, too; take another prefix,"
            " or none where the proxy passes paths on as they are"
        )


def _wrap(app: FastAPI, settings: Settings) -> None:
    """Middleware, innermost first: replies of each layer pass those added after it."""
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    if settings.api_keys:
        keys = [key.get_secret_value() for key in settings.api_keys]
        app.add_middleware(BearerKeys, keys=keys, page=settings.page)
    app.add_middleware(Errors)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    app.add_middleware(RequestLog)
    app.add_middleware(RequestId)


def _trace(app: FastAPI, endpoint: str) -> None:
    """Spans for a collector, around all but the metrics. Without one nothing of OpenTelemetry is imported here."""
    try:
        from app import tracing
    except ImportError as error:
        name = variable("otlp_traces_endpoint")
        raise SettingsError(
            f"{name} needs OpenTelemetry (pip install opentelemetry-sdk opentelemetry-exporter-otlp): {error}"
        ) from None
    app.state.spans = spans = tracing.provider(endpoint)
    app.add_middleware(tracing.Traced, tracer=spans.get_tracer("t5gemma2"))
    app.state.close_spans = lambda: tracing.close(spans)


def _observe(app: FastAPI, gateway: Gateway) -> None:
    """Metrics of the draft and of HTTP; the outermost layer, so that refusals of the others count too."""
    own = CollectorRegistry()
    ready, in_flight = lambda: gateway.ready, lambda: gateway.admission.in_flight
    own.register(DraftCollector(lambda: (gateway.identity, gateway.drafting), ready, in_flight))
    Instrumentator(
        registry=own,
        should_group_status_codes=False,
        should_group_untemplated=True,
        excluded_handlers=["^/metrics", "^/health$", "^/ready$"],
    ).add(_count_replies(own)).instrument(app)
    app.state.registry = everything = CollectorRegistry(auto_describe=False)
    # Both as one: an own registry alone hides the default one, where the engine puts `vllm:*`, and that one alone would
    # count two applications of one process together.
    for registry in (REGISTRY, own):
        everything.register(registry)


def _count_replies(registry: CollectorRegistry) -> Callable[[Info], None]:
    """The instrumentator's own metrics with two labels mended: any word may be a request's method, so that the series
    had no bound; and a stream that broke off has sent its 200 long before.
    """
    count = default(metric_namespace="t5gemma", registry=registry)
    assert count is not None

    def counted(info: Info) -> None:
        if info.method not in METHODS:
            info.method = "other"
        info.modified_status = str(info.request.scope.get("state", {}).get("broken", info.modified_status))
        count(info)

    return counted


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    gateway: Gateway = app.state.gateway
    allow_more()
    bound_heads()
    bound_shutdown(gateway.settings.shutdown_grace_s + CUT_OFF_S)
    gateway.on_end = lambda: signal.raise_signal(signal.SIGTERM)
    async with AsyncExitStack() as stack:
        stack.callback(_listen(gateway))
        gateway.start()
        yield
        await gateway.stop()
    if (close := getattr(app.state, "close_spans", None)) is not None:
        await asyncio.to_thread(close)
    end_relay()
    if gateway.broken:
        logging.shutdown()
        # uvicorn has no exit code for a server that ended well after its engine did not.
        os._exit(ENGINE_LOST)


def _listen(gateway: Gateway) -> Callable[[], None]:
    """Drains on the server's own ending signals, then lets the server handle them; returns the undoing.

    uvicorn tells an application of its end only after the last request ended, which is too late to bound it. A terminal
    that is closed ends the server as SIGTERM does, unless that was to be ignored (nohup): else it died at once, with
    streams cut off in their middle.
    """
    loop = asyncio.get_running_loop()
    former: dict[int, Any] = {}
    heard = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        loop.call_soon_threadsafe(gateway.drain)
        # A second Ctrl-C ends the requests, then the engine in good order. uvicorn takes it for a wish to leave without
        # that, by a traceback: a third is.
        if number == signal.SIGINT and heard == 2:
            return
        if callable(former[number]):
            former[number](number, frame)

    def undo() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            if callable(signal.getsignal(number)):
                former[number] = signal.signal(number, handle)
        if signal.SIGTERM in former and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            former[signal.SIGHUP] = signal.signal(
                signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM)
            )
    except ValueError:  # not the main thread: a test or an embedding server, which has no signals to give
        pass
    return undo
