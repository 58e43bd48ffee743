"""Makes OpenTelemetry spans from the record of a request.

    POST /v1/rank                      server span; attributes by the HTTP conventions, and polyrec.*
      unread                           waiting in the socket or for the body; left out if short
      parse  queue  serialise          phases of the request
      encode  embed  dense             phases of the batch that it was in
    batch                              in another trace, as it may answer many requests; linked both ways
      encode  embed  dense

Phases are spans, as OpenTelemetry deprecates span events (its blog, March 2026). Status is ERROR for failures
of the server (5xx), and if the client left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.span import TraceState

from polyrec.server.tracing.records import Execution, RequestRecord, SharedBatch

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
UNREAD_S = 1e-4
Attributes: TypeAlias = Mapping[str, str | bool | int | float]


class Ids(IdGenerator):
    """Generates random ids, except for the next span if the server has chosen its ids."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.next_trace: int | None = None
        self.next_span: int | None = None

    def generate_trace_id(self) -> int:
        given, self.next_trace = self.next_trace, None
        return given if given is not None else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        given, self.next_span = self.next_span, None
        return given if given is not None else self._random.generate_span_id()

    def is_trace_id_random(self) -> bool:
        return True


class Spans:
    """Creates the spans of records with a tracer whose provider takes its ids from `ids`."""

    def __init__(self, tracer: Tracer, ids: Ids) -> None:
        self._tracer = tracer
        self._ids = ids

    def emit(self, request: RequestRecord) -> None:
        """Creates the spans of one request and of the batches that its record reports."""
        span = self._whole(
            f"POST {request.route}",
            (request.trace_id, request.span_id),
            _parent(request),
            SpanKind.SERVER,
            _attributes(request),
            [_link(e.trace_id, e.span_id) for e in request.executions],
            _ns(request.arrival_s, request.offset_ns),
        )
        if request.status >= 500 or not request.status:
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span, Context())
        phases: list[tuple[str, float, float]] = []
        begun_s = request.begun_s or request.ended_s
        if begun_s - request.arrival_s > UNREAD_S:
            phases.append(("unread", request.arrival_s, begun_s))
        if request.begun_s:
            phases.append(("parse", begun_s, request.parsed_s or request.ended_s))
        if request.parsed_s:
            first = min((e.started_s for e in request.executions), default=request.ended_s)
            phases.append(("queue", request.parsed_s, first))
        for execution in request.executions:
            phases += _stages(execution)
        if request.answered_s:
            phases.append(("serialise", request.answered_s, request.written_s))
        self._phases(phases, inside, request.offset_ns)
        span.end(_ns(request.ended_s, request.offset_ns))
        for shared_batch in request.batches:
            self._batch(shared_batch, request.offset_ns)

    def _batch(self, shared_batch: SharedBatch, offset_ns: int) -> None:
        execution = shared_batch.execution
        span = self._whole(
            "batch",
            (execution.trace_id, execution.span_id),
            Context(),
            SpanKind.INTERNAL,
            {
                "polyrec.lane": execution.lane,
                "polyrec.path": execution.path,
                "polyrec.rows": execution.rows,
                "polyrec.queries": execution.queries,
            },
            [_link(trace_id, span_id) for trace_id, span_id in shared_batch.requests],
            _ns(execution.started_s, offset_ns),
        )
        self._phases(_stages(execution), set_span_in_context(span, Context()), offset_ns)
        span.end(_ns(execution.ended_s, offset_ns))

    def _whole(
        self,
        name: str,
        ids: tuple[bytes, int],
        parent: Context,
        kind: SpanKind,
        attributes: Attributes,
        links: list[Link],
        start_ns: int,
    ) -> Span:
        self._ids.next_trace, self._ids.next_span = int.from_bytes(ids[0], "big"), ids[1]
        span = self._tracer.start_span(name, parent, kind, attributes, links, start_ns)
        # a span with a parent uses that one's trace id, and leaves ours unused
        self._ids.next_trace = self._ids.next_span = None
        return span

    def _phases(self, phases: list[tuple[str, float, float]], inside: Context, offset_ns: int) -> None:
        for name, start_s, end_s in phases:
            self._tracer.start_span(name, inside, start_time=_ns(start_s, offset_ns)).end(
                _ns(max(start_s, end_s), offset_ns)
            )


def _stages(execution: Execution) -> list[tuple[str, float, float]]:
    start_s, embed_s = execution.started_s, execution.embed_at_s
    dense_s = embed_s + execution.embed_s
    return [
        ("encode", start_s, start_s + execution.encode_s),
        ("embed", embed_s, dense_s),
        ("dense", dense_s, dense_s + execution.dense_s),
    ]


def _attributes(request: RequestRecord) -> Attributes:
    found: dict[str, str | bool | int | float] = {
        "http.request.method": "POST",
        "http.route": request.route,
        "url.path": request.path,
        "url.scheme": request.scheme,
        "network.protocol.version": request.http_version,
        "server.address": request.address,
        "server.port": request.port,
        "polyrec.outcome": request.outcome,
        "polyrec.degraded": request.reason is not None,
    }
    if request.request_id:
        found["polyrec.request_id"] = request.request_id
    if request.status:
        found["http.response.status_code"] = request.status
    if request.status >= 500 or not request.status:
        found["error.type"] = request.outcome
    if request.rows:
        found["polyrec.rows"] = request.rows
    if request.budget_s:
        found["polyrec.budget_ms"] = request.budget_s * 1e3
    if request.answered_by is not None:
        found["polyrec.path"] = request.answered_by
    if request.reason is not None:
        found["polyrec.reason"] = request.reason
    return found


def _parent(request: RequestRecord) -> Context:
    if not request.parent_id:
        return Context()
    state = TraceState.from_header([request.tracestate]) if request.tracestate else None
    trace = int.from_bytes(request.trace_id, "big")
    return set_span_in_context(
        NonRecordingSpan(SpanContext(trace, request.parent_id, True, SAMPLED, state)), Context()
    )


def _link(trace_id: bytes, span_id: int) -> Link:
    return Link(SpanContext(int.from_bytes(trace_id, "big"), span_id, False, SAMPLED))


def _ns(moment_s: float, offset_ns: int) -> int:
    return round(moment_s * 1e9) + offset_ns
