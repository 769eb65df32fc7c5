"""Traces of requests for an OpenTelemetry collector. Imported only where one is named (`T5GEMMA_OTLP_TRACES_ENDPOINT`).

What else there is to choose is OpenTelemetry's own: `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`,
`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`, `OTEL_EXPORTER_OTLP_TRACES_HEADERS`. The provider is the
process's own, so that vLLM's spans of its front end leave by it, too.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.config.settings import SettingsError
from app.middleware import SPAN, Layer, route_path

TRACED = "/v1/completions"
SERVICE = "t5gemma2"
FLUSH_S = 2.0
"""Until the last spans have left when the server ends; a collector that is gone does not hold it up any longer."""
_W3C = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """The span of one request, and who makes its children."""

    tracer: Tracer
    span: Span

    @property
    def headers(self) -> Mapping[str, str]:
        """W3C trace context for whoever works for this request."""
        found: dict[str, str] = {}
        _W3C.inject(found, trace.set_span_in_context(self.span))
        return found

    def child(self, name: str, begin_ns: int, end_ns: int, attributes: Mapping[str, int]) -> None:
        """A part of the request that is over; Unix time in nanoseconds."""
        context = trace.set_span_in_context(self.span)
        span = self.tracer.start_span(name, context, attributes=attributes, start_time=begin_ns)
        span.end(end_ns)


def exporter(endpoint: str) -> SpanExporter:
    """As vLLM chooses its own, so that one collector gets both.

    Raises:
        SettingsError: the protocol is neither of the two.
    """
    protocol = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=endpoint, insecure=True)
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp(endpoint=endpoint)
    raise SettingsError(f"{OTEL_EXPORTER_OTLP_TRACES_PROTOCOL}={protocol}: use grpc or http/protobuf")


def provider(endpoint: str) -> TracerProvider:
    """Sends spans to the collector in the background. The process's own from now on, unless it has one."""
    os.environ.setdefault(OTEL_SERVICE_NAME, SERVICE)  # also for vLLM's processes
    made = TracerProvider(resource=Resource.create(), shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(exporter(endpoint)))
    # vLLM will try to put one of its own there, and is told that it cannot.
    logging.getLogger("opentelemetry.trace").addFilter(_not_about_the_second)
    trace.set_tracer_provider(made)
    return made


def _not_about_the_second(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Overriding of current TracerProvider")


def close(made: TracerProvider) -> None:
    """Lets the last spans leave, for a short while."""
    last = threading.Thread(target=made.shutdown, name="last-spans", daemon=True)
    last.start()
    last.join(FLUSH_S)


class Traced(Layer):
    """A span for every completion that is asked for, refused ones too, as child of the caller's."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        super().__init__(app)
        self._tracer = tracer

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST" or route_path(scope) != TRACED:
            await self.app(scope, receive, send)
            return
        given = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        attributes = {"http.request.method": "POST", "http.route": TRACED, "url.path": scope["path"]}
        span = self._tracer.start_span(f"POST {TRACED}", _W3C.extract(given), SpanKind.SERVER, attributes)
        own = RequestSpan(self._tracer, span)
        scope["state"] = {**scope.get("state", {}), SPAN: own}
        echo = (b"traceresponse", own.headers["traceparent"].encode())
        status = 500

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], echo]
            await send(message)

        try:
            await self.app(scope, receive, tagged)
        finally:
            _end(span, scope["state"].get("broken", status))


def _end(span: Span, status: int) -> None:
    """4xx are the caller's errors and leave the span's status alone, as the conventions want it."""
    span.set_attribute("http.response.status_code", status)
    if status >= 400:
        span.set_attribute("error.type", str(status))
    if status >= 500:
        span.set_status(StatusCode.ERROR)
    span.end()
