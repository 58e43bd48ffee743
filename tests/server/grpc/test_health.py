"""The health service, by gRPC's own client."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from polyrec.server.grpc.messages import SERVICE
from tests.forking import start
from tests.server.grpc.conftest import Stub

BUDGET = {"X-Latency-Budget-Ms": "2000"}
Response = health_pb2.HealthCheckResponse


def named(service: str) -> Any:
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", SERVICE])
def test_a_ready_server_serves(stub: Stub, service: str) -> None:
    health = health_pb2_grpc.HealthStub(stub.channel)
    assert health.Check(named(service)).status == Response.SERVING
    watch = health.Watch(named(service))
    assert next(watch).status == Response.SERVING
    watch.cancel()


def test_another_service_is_unknown(stub: Stub, refused: Callable[..., Any]) -> None:
    health = health_pb2_grpc.HealthStub(stub.channel)
    error = refused(health.Check, named("other"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    watch = health.Watch(named("other"))
    assert next(watch).status == Response.SERVICE_UNKNOWN
    watch.cancel()


@pytest.mark.long
def test_a_server_whose_only_lane_stalls_is_not_serving_until_it_answers(bundle_dir: Path) -> None:
    settings = {"bundle": bundle_dir, "grpc_port": 0, "lane": "process", "lanes": 1, "drain_grace_s": 0}
    with (
        start(settings) as server,
        httpx.Client(base_url=server.url) as http,
        grpc.insecure_channel(str(server.grpc)) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(named(""), timeout=90)
        assert next(watch).status == Response.SERVING
        (lane,) = http.get("/v1/paths").json()["lanes"]
        os.kill(lane["pid"], signal.SIGSTOP)
        try:
            answer = http.post("/v1/predict", json={"instances": [{}]}, headers=BUDGET)
            assert answer.status_code == 504
            assert next(watch).status == Response.NOT_SERVING
            assert health.Check(named(SERVICE)).status == Response.NOT_SERVING
            assert not Stub(channel).ask("ServerReady").ready
            page = http.get("/readyz")
            assert (page.status_code, page.json()["error"]) == (503, "all lanes are stalled")
        finally:
            os.kill(lane["pid"], signal.SIGCONT)
        assert next(watch).status == Response.SERVING
        assert http.get("/readyz").status_code == 200
        watch.cancel()


def test_a_draining_server_is_not_serving_and_ends_what_is_open(bundle_dir: Path) -> None:
    settings = {"bundle": bundle_dir, "grpc_port": 0, "drain_grace_s": 30}
    with start(settings) as server, grpc.insecure_channel(str(server.grpc)) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(named(""))
        assert next(watch).status == Response.SERVING
        stream = Stub(channel).method("ModelStreamInfer")(hold())
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == Response.NOT_SERVING
        assert not Stub(channel).ask("ServerReady").ready
        assert Stub(channel).ask("ServerLive").live
        server.process.send_signal(signal.SIGTERM)  # does not wait for the grace
        for call in (watch, stream):
            assert call.code() is grpc.StatusCode.UNAVAILABLE
            assert call.details() == "the server is stopping; ask another"
        assert server.process.wait(timeout=30) == 0


def hold() -> Iterator[Any]:
    """Requests of a stream that never come and never end."""
    threading.Event().wait()
    yield
