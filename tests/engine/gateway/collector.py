"""An OpenTelemetry collector of a few lines: OTLP over HTTP on a port of its own, what it got kept in a list."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    """`spans` are those that have arrived, with the name of their service."""

    url: str = ""
    spans: list[tuple[str, Any]] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {one.key: one.value.string_value for one in part.resource.attributes}
            spans = [span for scope in part.scope_spans for span in scope.spans]
            self.spans += [(named["service.name"], span) for span in spans]

    def wait_for(self, name: str, trace_id: str, within_s: float = 20) -> tuple[str, Any]:
        """The span of that name in that trace."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for service, span in list(self.spans):
                if span.name == name and span.trace_id.hex() == trace_id:
                    return service, span
            time.sleep(0.05)
        raise AssertionError(f"no {name} of {trace_id} among {[span.name for _, span in self.spans]}")


@contextmanager
def collector() -> Iterator[Collector]:
    """One that listens; its `url` is the endpoint to export to."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
