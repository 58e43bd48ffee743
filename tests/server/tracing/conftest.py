"""A collector: an HTTP server that decodes what an exporter really sends."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(ThreadingHTTPServer):
    """Keeps the spans and the resources' attributes of every request to /v1/traces."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def inside(self, span: Span) -> list[Span]:
        """Its children, by their start."""
        children = [s for s in self.spans if s.parent_span_id == span.span_id]
        return sorted(children, key=lambda s: s.start_time_unix_nano)


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            self.server.resources.append(attributes(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                self.server.spans.extend(of_scope.spans)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


def attributes(pairs: Any) -> dict[str, Any]:
    """Attributes as they came over the wire."""

    def value(pair: KeyValue) -> Any:
        return getattr(pair.value, pair.value.WhichOneof("value"))

    return {pair.key: value(pair) for pair in pairs}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that servers started by this test send to."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "ranking")
        yield collector
        collector.shutdown()
        thread.join()
