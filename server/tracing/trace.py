"""The trace of one sampled request in the server.

`Tracer.begin` creates it, the query carries it, the dispatcher adds every batch that has rows of the request,
and the endpoint ends it, which sends its record.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.types import Scope

from polyrec.server.request_ids import SCOPE_KEY
from polyrec.server.tracing.records import Execution, RequestRecord, SharedBatch

SERVED_BY_VERSION = "/v2/models/{model}/versions/{version}/infer"


def trace_id() -> bytes:
    """Returns a random trace id; never all zeros, which means none."""
    return (random.getrandbits(128) or 1).to_bytes(16, "big")


def span_id() -> int:
    """Returns a random span id; never 0, which means none."""
    return random.getrandbits(64) or 1


class Moments(NamedTuple):
    """When a request arrived, was parsed, answered and ended, in seconds on `clock`; 0 if not reached."""

    arrival_s: float
    begun_s: float = 0.0
    parsed_s: float = 0.0
    answered_s: float = 0.0
    written_s: float = 0.0
    ended_s: float = 0.0


@dataclass(slots=True, eq=False)
class Trace:
    """The trace of one request. send: sends its record. parent_id: id of the client's span, 0 if none."""

    send: Callable[[RequestRecord], None]
    scope: Scope
    route: str
    trace_id: bytes
    parent_id: int = 0
    tracestate: str = ""
    span_id: int = field(default_factory=span_id)
    executions: list[Execution] = field(default_factory=list)
    batches: list[SharedBatch] = field(default_factory=list)

    def end(
        self,
        moments: Moments,
        outcome: str,
        status: int,
        rows: int,
        budget_s: float,
        answered_by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Sends the record of the request."""
        scope = self.scope
        address, port = scope.get("server") or ("", 0)
        route = SERVED_BY_VERSION if "version" in scope.get("path_params", ()) else self.route
        self.send(
            RequestRecord(
                trace_id=self.trace_id,
                span_id=self.span_id,
                parent_id=self.parent_id,
                tracestate=self.tracestate,
                offset_ns=time.time_ns() - time.perf_counter_ns(),
                request_id=scope.get(SCOPE_KEY, ""),
                path=scope["path"],
                route=route,
                scheme=scope["scheme"],
                http_version=scope["http_version"],
                address=address,
                port=port or 0,
                status=status,
                outcome=outcome,
                rows=rows,
                budget_s=budget_s,
                answered_by=answered_by,
                reason=reason,
                **moments._asdict(),
                executions=self.executions,
                batches=self.batches,
            )
        )


@dataclass(frozen=True, slots=True)
class StageTimes:
    """When a batch began and ended on the server's clock, and how long its stages took, in seconds."""

    began_s: float
    encode_s: float
    embed_s: float
    dense_s: float
    ended_s: float

    @property
    def embed_at_s(self) -> float:
        """When the embed stage began.

        A lane reports how long its stages took, not when they ran; the delays to and from it are assumed
        equal.
        """
        return (self.began_s + self.encode_s + self.ended_s - self.embed_s - self.dense_s) / 2


def record_execution(
    traces: Sequence[Trace], lane: str, path: str, rows: int, queries: int, times: StageTimes
) -> None:
    """Adds an executed batch to the traces of its sampled requests. queries: in the batch, sampled or not."""
    execution = Execution(
        trace_id(),
        span_id(),
        lane,
        path,
        rows,
        queries,
        times.began_s,
        times.encode_s,
        times.embed_at_s,
        times.embed_s,
        times.dense_s,
        times.ended_s,
    )
    for trace in traces:
        trace.executions.append(execution)
    traces[0].batches.append(SharedBatch(execution, [(trace.trace_id, trace.span_id) for trace in traces]))
