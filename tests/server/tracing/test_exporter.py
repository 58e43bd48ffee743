"""From requests to a real server to the spans that a collector receives."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.forking import start
from tests.server.tracing.conftest import Collector, attributes

pytestmark = pytest.mark.long  # a server, a collector and an exporting process each

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=value"}
ROWS: dict[str, Any] = {"instances": [{}] * 20}


@pytest.mark.parametrize("lane", ["inline", "thread", "process"])
def test_a_request_is_a_span_with_its_phases_inside(
    lane: str, bundle_dir: Path, collector: Collector
) -> None:
    before_ns = time.time_ns()
    with start(
        {"bundle": bundle_dir, "lane": lane, "default_budget_ms": 60_000, "drain_grace_s": 0}
    ) as server:
        wish = {"X-Latency-Budget-Ms": "30000"}
        answer = httpx.post(f"{server.url}/v1/predict", json=ROWS, headers=TRACED | wish, timeout=60)
        path = answer.json()["path"]
        port = int(server.url.rpartition(":")[2])
    after_ns = time.time_ns()

    (span,) = collector.named("POST /v1/predict")
    assert span.kind == Span.SPAN_KIND_SERVER
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, CALLER)
    assert span.trace_state == "vendor=value"
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert attributes(span.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/predict",
        "http.response.status_code": 200,
        "url.path": "/v1/predict",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "server.port": port,
        "polyrec.request_id": answer.headers["x-request-id"],
        "polyrec.path": path,
        "polyrec.degraded": False,
        "polyrec.outcome": "ok",
        "polyrec.rows": 20,
        "polyrec.budget_ms": 30000.0,
    }
    phases = [p for p in collector.inside(span) if p.name != "unread"]
    assert [p.name for p in phases] == ["parse", "queue", "encode", "embed", "dense", "serialise"]
    moments = [m for p in phases for m in (p.start_time_unix_nano, p.end_time_unix_nano)]
    assert moments == sorted(moments)
    assert before_ns < span.start_time_unix_nano <= moments[0]
    assert moments[-1] <= span.end_time_unix_nano < after_ns
    assert {p.trace_id.hex() for p in phases} == {TRACE}

    assert {r["service.name"] for r in collector.resources} == {"ranking"}


def test_a_batch_and_its_requests_are_linked_both_ways(bundle_dir: Path, collector: Collector) -> None:
    with (
        start({"bundle": bundle_dir, "default_budget_ms": 60_000, "drain_grace_s": 0}) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        for endpoint, body in (("predict", ROWS), ("rank", {"context": {}, "candidates": [{}] * 3})):
            assert http.post(f"/v1/{endpoint}", json=body).status_code == 200
    requests = collector.named("POST /v1/predict") + collector.named("POST /v1/rank")
    batches = {batch.span_id: batch for batch in collector.named("batch")}
    assert len(requests) == len(batches) == 2
    for request in requests:
        (link,) = request.links
        batch = batches[link.span_id]
        (back,) = batch.links
        assert (back.trace_id, back.span_id) == (request.trace_id, request.span_id)
        assert batch.trace_id == link.trace_id != request.trace_id
        reported = attributes(batch.attributes)
        assert reported["polyrec.rows"] == attributes(request.attributes)["polyrec.rows"]
        assert reported["polyrec.queries"] == 1
        assert [s.name for s in collector.inside(batch)] == ["encode", "embed", "dense"]


def test_the_senders_decision_counts_before_the_ratio(
    bundle_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    unsampled = TRACED | {"traceparent": f"00-{TRACE}-{CALLER}-00"}
    with (
        start({"bundle": bundle_dir, "default_budget_ms": 60_000, "drain_grace_s": 0}) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        for headers in ({}, unsampled, {"traceparent": "nonsense"}, TRACED):
            assert http.post("/v1/predict", json=ROWS, headers=headers).status_code == 200
    (span,) = collector.named("POST /v1/predict")
    assert span.parent_span_id.hex() == CALLER


def test_errors_have_their_status_and_only_server_failures_are_5xx(
    bundle_dir: Path, collector: Collector
) -> None:
    with (
        start({"bundle": bundle_dir, "default_budget_ms": 60_000, "drain_grace_s": 0}) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        assert http.post("/v1/predict", content=b"{").status_code == 400
        late = http.post("/v1/predict", json=ROWS, headers={"X-Latency-Budget-Ms": "0.001"})
        assert late.status_code == 504
    by_status = {
        attributes(s.attributes)["http.response.status_code"]: s for s in collector.named("POST /v1/predict")
    }
    invalid, expired = by_status[400], by_status[504]
    assert attributes(invalid.attributes)["polyrec.outcome"] == "invalid"
    assert invalid.status.code == Status.STATUS_CODE_UNSET
    assert attributes(expired.attributes)["error.type"] == "expired"
    assert expired.status.code == Status.STATUS_CODE_ERROR
    assert "polyrec.path" not in attributes(expired.attributes)
    assert not expired.links


def test_a_version_in_the_address_is_no_part_of_the_name(bundle_dir: Path, collector: Collector) -> None:
    with (
        start({"bundle": bundle_dir, "default_budget_ms": 60_000, "drain_grace_s": 0}) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        (version,) = http.get("/v2/models/dlrm").json()["versions"]
        http.post(f"/v2/models/dlrm/versions/{version}/infer", json={"inputs": []})
    (span,) = [s for s in collector.spans if s.name.startswith("POST")]
    assert span.name == "POST /v2/models/{model}/versions/{version}/infer"
    assert attributes(span.attributes)["url.path"] == f"/v2/models/dlrm/versions/{version}/infer"


def test_without_a_collector_nothing_is_started(bundle_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with start({"bundle": bundle_dir, "default_budget_ms": 60_000, "drain_grace_s": 0}) as server:
        tasks = Path(f"/proc/{server.process.pid}/task")
        children = [(task / "children").read_text().split() for task in tasks.iterdir()]
        assert not any(children)


def test_a_collector_that_is_away_costs_no_answer_and_no_clean_end(
    bundle_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as gone:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", gone.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with start({"bundle": bundle_dir, "drain_grace_s": 0}) as server:
        assert httpx.post(f"{server.url}/v1/predict", json=ROWS, timeout=60).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
