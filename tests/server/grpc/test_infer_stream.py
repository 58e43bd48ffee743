"""Streams: order, bounds, errors and ends; the one unused for longest is closed if there are too many."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.server.child import ServerProcess
from polyrec.server.errors import NotReady, TooBusy
from polyrec.server.grpc.infer_stream import MAX_IN_FLIGHT, InferStream
from polyrec.server.grpc.limits.streams import OpenStreams
from polyrec.server.grpc.listener import MIN_READERS
from polyrec.server.grpc.messages import SERVICE
from polyrec.server.repository.repository import ModelRepository
from tests.forking import start
from tests.server.grpc.conftest import Stub, infer_request, probabilities

Tensors = Callable[[Any], dict[str, Any]]


def test_answers_come_in_the_order_of_the_requests_errors_included(
    stub: Stub, requests: list[Any], tensors: Tensors, offline: Callable[[Any], Any]
) -> None:
    asked = [requests[i % len(requests)] for i in range(3 * MAX_IN_FLIGHT)]
    sent = [
        infer_request({} if i % 7 == 3 else tensors(r), i % 2 == 0, id=str(i)) for i, r in enumerate(asked)
    ]
    answers = list(stub.method("ModelStreamInfer")(iter(sent), timeout=120))
    assert [a.infer_response.id for a in answers] == [r.id for r in sent]
    for i, (request, answer) in enumerate(zip(asked, answers, strict=True)):
        if i % 7 == 3:
            assert answer.error_message.startswith("[StatusCode.INVALID_ARGUMENT] input ")
        else:
            np.testing.assert_allclose(probabilities(answer.infer_response), offline(request), atol=1e-5)


def test_a_message_that_is_not_one_costs_only_its_answer(stub: Stub, request_: Any, tensors: Tensors) -> None:
    call = stub.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    good = infer_request(tensors(request_)).SerializeToString()
    first, second, third = call(iter([good, b"\xff\xff", good]), timeout=30)
    assert first == third
    assert b"is not a ModelInferRequest" in second


def test_an_empty_stream_ends_well(stub: Stub) -> None:
    assert list(stub.method("ModelStreamInfer")(iter(()), timeout=30)) == []


def test_a_client_that_leaves_cancels_what_it_asked(
    grpc_server: ServerProcess, stub: Stub, request_: Any, tensors: Tensors
) -> None:
    requests: queue.Queue[Any] = queue.Queue()
    stream = stub.method("ModelStreamInfer")(iter(requests.get, None))
    requests.put(infer_request(tensors(request_), id="1"))
    assert next(stream).infer_response.id == "1"
    stream.cancel()
    requests.put(None)
    assert stub.infer(infer_request(tensors(request_), id="2")).id == "2"


def test_a_client_that_does_not_read_is_not_waited_for(
    bundle_dir: Path, request_: Any, tensors: Tensors
) -> None:
    settings = {"bundle": bundle_dir, "grpc_port": 0, "drain_grace_s": 0, "write_timeout_s": 0.2}
    with start(settings | {"default_budget_ms": 60_000}) as server:
        small = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        with grpc.insecure_channel(str(server.grpc), small) as channel:
            many = {n: np.concatenate([a] * 30) for n, a in tensors(request_).items()}

            def forever() -> Iterator[Any]:
                while True:
                    yield infer_request(many)

            stream = Stub(channel).method("ModelStreamInfer")(forever())
            limited = 0.0
            while not limited:
                samples = MetricSamples(httpx.get(f"{server.url}/metrics").text)
                limited = samples.total("polyrec_limited_total", limit="grpc_write")
            # the answer that was not read; those before it were answered
            assert samples.total("polyrec_requests_total", endpoint="infer", outcome="invalid") == 1
            assert Stub(channel).ask("ServerReady").ready
            # the status stands behind answers that were not read
            stream.cancel()


class Unread:
    """gRPC's side of a call whose client sends a message again and again, and reads no response."""

    def __init__(self, message: bytes) -> None:
        self.message, self.sent = message, 0

    async def read(self) -> bytes:
        self.sent += 1
        return self.message

    async def write(self, response: bytes) -> None:
        await asyncio.Event().wait()

    def time_remaining(self) -> None:
        return None


@pytest.mark.parametrize(("max_messages", "read"), [(3.5, 4), (0.5, 1), (1000, MAX_IN_FLIGHT)])
def test_a_stream_holds_as_many_bytes_as_a_message_may_have_and_one_message(
    client: Any, request_: Any, tensors: Tensors, max_messages: float, read: int
) -> None:
    message = infer_request(tensors(request_)).SerializeToString()
    context, models = Unread(message), ModelRepository([client.app.engine])
    exceeded: list[str] = []

    async def run() -> None:
        scope: dict[str, Any] = {"type": "http", "headers": [], "client": None}
        max_bytes = int(max_messages * len(message))
        stream = InferStream(models, OpenStreams(1, exceeded.append), context, scope, 600, max_bytes)
        running = asyncio.create_task(stream.run())
        while not context.sent:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    client.runner.run(run())
    assert context.sent == read


def test_a_new_stream_takes_the_place_of_the_one_that_is_idle_for_longest() -> None:
    exceeded: list[str] = []
    streams, ended = OpenStreams(2, exceeded.append), []
    with (
        streams.opened(lambda: ended.append("a")) as a,
        streams.opened(lambda: ended.append("b")) as b,
    ):
        streams.used(a)
        with streams.opened(lambda: ended.append("c")) as c:
            assert (ended, exceeded) == (["b"], ["grpc_streams"])
            assert isinstance(b.ended_by, TooBusy)
            streams.used(b)  # it is answering what it has read: that gives it no place
            with streams.opened(lambda: ended.append("d")):
                assert ended == ["b", "a"]
            streams.stop()
            assert ended == ["b", "a", "c"]
            assert isinstance(c.ended_by, NotReady)
            assert isinstance(a.ended_by, TooBusy)


def test_work_that_gives_way_or_is_stopped_says_why() -> None:
    async def run() -> None:
        streams = OpenStreams(1, [].append)
        first, second = (asyncio.create_task(streams.run(asyncio.sleep(3600))) for _ in range(2))
        with pytest.raises(TooBusy, match="more than 1 streams are open"):
            await first
        streams.stop()
        with pytest.raises(NotReady, match="stopping"):
            await second
        began = asyncio.Event()

        async def work() -> None:
            began.set()

        with pytest.raises(NotReady, match="stopping"):
            await streams.run(work())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not began.is_set()

    asyncio.run(run())


def test_idle_streams_keep_no_health_watch_out_and_end_none_in_use(
    bundle_dir: Path, request_: Any, tensors: Tensors
) -> None:
    settings = {"bundle": bundle_dir, "grpc_port": 0, "drain_grace_s": 0, "max_buffered_bytes": 2**20}
    with (
        start(settings | {"default_budget_ms": 60_000}) as server,
        grpc.insecure_channel(str(server.grpc)) as channel,
    ):
        streams = []
        for _ in range(MIN_READERS):
            requests: queue.Queue[Any] = queue.Queue()
            streams.append((requests, Stub(channel).method("ModelStreamInfer")(iter(requests.get, None))))
            requests.put(infer_request(tensors(request_)))
            assert not next(streams[-1][1]).error_message
        (first_requests, first), (_, second) = streams[:2]
        first_requests.put(infer_request(tensors(request_)))
        assert not next(first).error_message
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        assert second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first_requests.put(infer_request(tensors(request_)))
        assert not next(first).error_message
        for requests, _ in streams:
            requests.put(None)
        watch.cancel()
