"""Samples requests for tracing. OpenTelemetry's variables configure it; naming a collector enables it:

    OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318  OTEL_SERVICE_NAME=ranking
    OTEL_TRACES_SAMPLER=parentbased_traceidratio       OTEL_TRACES_SAMPLER_ARG=0.01

A request with a W3C `traceparent` becomes a child of that span, and the sampler gets the sender's decision.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.types import Scope

from polyrec.server.record_pipe import RecordPipe, close_pipes
from polyrec.server.tracing.records import RequestRecord, pack_record
from polyrec.server.tracing.trace import Trace, trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

log = logging.getLogger("polyrec.tracing")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
ROUTES = {
    "predict": "/v1/predict",
    "rank": "/v1/rank",
    "infer": "/v2/models/{model}/infer",
}
"""Route in the names of spans, by endpoint."""
PROPAGATED = frozenset({b"traceparent", b"tracestate"})
PARSERS = ("opentelemetry.trace.span", "opentelemetry.trace.propagation.tracecontext")
"""Loggers that quote invalid headers of a client, one warning each, before its token is checked."""


class Tracer:
    """Samples requests, and sends the records of sampled ones to the exporter process."""

    def __init__(self, sampler: Sampler, pipe: RecordPipe) -> None:
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace.sampling import Decision
        from opentelemetry.trace import SpanKind, get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        for name in PARSERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._sample = sampler.should_sample
        self._extract = TraceContextTextMapPropagator().extract
        self._span_of = get_current_span
        self._nothing = Context()
        self._kind = SpanKind.SERVER
        self._yes = Decision.RECORD_AND_SAMPLE
        self.pipe = pipe

    def begin(self, scope: Scope, endpoint: str) -> Trace | None:
        """Begins the trace of a request; returns None if it is not sampled."""
        carrier: dict[str, str] = {}
        for name, value in scope["headers"]:
            if name in PROPAGATED:
                # several fields of one name are one list, RFC 9110 section 5.3
                key, text = name.decode(), value.decode("latin-1")
                carrier[key] = f"{carrier[key]},{text}" if key in carrier else text
        id_of_trace, parent_id, context = b"", 0, self._nothing
        if carrier:
            context = self._extract(carrier, self._nothing)
            parent = self._span_of(context).get_span_context()
            if parent.is_valid:
                id_of_trace, parent_id = parent.trace_id.to_bytes(16, "big"), parent.span_id
        id_of_trace = id_of_trace or trace_id()
        # a gRPC call has a method for a path, without names in it
        route = ROUTES[endpoint] if scope["type"] == "http" else scope["path"]
        sampled = self._sample(context, int.from_bytes(id_of_trace, "big"), f"POST {route}", self._kind)
        if sampled.decision is not self._yes:
            return None
        state = sampled.trace_state.to_header() if sampled.trace_state else ""
        return Trace(self._send, scope, route, id_of_trace, parent_id, state)

    def close(self) -> None:
        """Sends buffered records, in bounded time."""
        close_pipes([self.pipe])

    def _send(self, request: RequestRecord) -> None:
        self.pipe.send(pack_record(request))


def open_tracer(environ: Mapping[str, str]) -> Tracer | None:
    """Returns a tracer if the environment names a collector; None otherwise, or with a warning if it fails.

    A collector is often set for every program of a cluster, which must not prevent a server from starting.
    """
    if not is_enabled(environ):
        return None
    for name in PROTOCOLS:
        if environ.get(name, "http/protobuf") != "http/protobuf":
            log.warning("no traces: %s is '%s'; only http/protobuf is supported", name, environ[name])
            return None
    if not all(_installed(package) for package in PACKAGES):
        named = next(name for name in ENDPOINTS if environ.get(name))
        log.warning("no traces, although %s is set: pip install 'polyrec[otel]'", named)
        return None
    from opentelemetry.sdk.trace import TracerProvider

    # the SDK reads OTEL_TRACES_SAMPLER and its argument, samplers of other packages included
    return Tracer(TracerProvider(shutdown_on_exit=False).sampler, exporter_pipe(environ))


def exporter_pipe(environ: Mapping[str, str]) -> RecordPipe:
    """Starts the exporter and returns the pipe to it. environ: its environment variables."""
    return RecordPipe("polyrec.server.tracing.exporter", "exporter of traces", "traces", log, environ)


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Returns whether the environment enables tracing."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = {name.strip().lower() for name in environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")}
    return "otlp" in exporters and any(environ.get(name) for name in ENDPOINTS)


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
