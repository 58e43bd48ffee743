"""Streams are limited in number, and the one that was not used for the longest time gives way."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from polyrec.server.child import start
from polyrec.server.errors import NotReady, TooBusy
from polyrec.server.grpc.listener import MIN_READERS
from polyrec.server.grpc.streams import OpenStreams
from tests.server.grpc.conftest import Stub, infer_request

Tensors = Callable[[Any], dict[str, Any]]


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
        with pytest.raises(NotReady, match="stopping"):
            await streams.run(asyncio.sleep(0))

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
