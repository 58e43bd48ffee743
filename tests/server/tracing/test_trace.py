"""Tests the moments that a request's trace records."""

from __future__ import annotations

import pytest

from polyrec.server.tracing.records import RequestRecord
from polyrec.server.tracing.trace import Moments, StageTimes, Trace, record_execution, trace_id

SCOPE = {"path": "/v1/rank", "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 8000)}
TIMES = StageTimes(began_s=1.0, encode_s=0.1, embed_s=0.2, dense_s=0.3, ended_s=2.0)


def test_requests_of_a_batch_share_it_and_one_record_reports_it() -> None:
    sent: list[RequestRecord] = []
    traces = [Trace(sent.append, SCOPE, "/v1/rank", trace_id()) for _ in range(3)]
    record_execution(traces, "cpu", "table@cpu", 60, 5, TIMES)
    for trace in traces:
        trace.end(Moments(0.5, 0.5, 0.9, 2.0, 2.1, 2.2), "ok", 200, 20, 0.1, "table@cpu")
    assert len({request.executions[0].span_id for request in sent}) == 1
    (shared,) = [shared for request in sent for shared in request.batches]
    assert shared.execution == sent[0].executions[0]
    assert shared.requests == [(trace.trace_id, trace.span_id) for trace in traces]


def test_the_ways_to_and_from_a_lane_are_assumed_equal() -> None:
    sent: list[RequestRecord] = []
    trace = Trace(sent.append, SCOPE, "/v1/rank", trace_id())
    record_execution([trace], "cpu", "table@cpu", 60, 1, TIMES)
    (execution,) = trace.executions
    there_s = execution.embed_at_s - (execution.started_s + execution.encode_s)
    back_s = execution.ended_s - (execution.embed_at_s + execution.embed_s + execution.dense_s)
    assert there_s == pytest.approx(back_s)
    assert there_s > 0
