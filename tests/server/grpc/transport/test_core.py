"""gRPC core's server on a loop, by gRPC's own client: calls at once, limits, cancellation and the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from polyrec.server.grpc.transport.core import EVENTS_PER_ITERATION, REQUESTED, CoreServer, IncomingCall

Code = grpc.StatusCode
MANY = 2 * max(REQUESTED, EVENTS_PER_ITERATION)
Scene = Callable[[CoreServer, Any], Awaitable[None]]


def play(scene: Scene, on_call: Callable[[IncomingCall], object], most_calls: int = 2 * MANY) -> None:
    """Runs a scene with a server and a channel to it, then stops the server, whatever is in progress."""

    async def run() -> None:
        server = CoreServer(on_call, [("grpc.so_reuseport", 0)], most_calls)
        port = server._server.add_http2_port(b"127.0.0.1:0")
        server.start()
        async with asyncio.timeout(60):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await scene(server, channel)
            server.begin_stop(0.0)
            await server.stopped()
        assert server.is_idle

    asyncio.run(run())


def method(channel: Any, kind: str = "unary_unary") -> Any:
    return getattr(channel, kind)("/some.Service/Method")


def test_many_calls_are_in_progress_at_once_and_each_has_its_answer() -> None:
    calls: list[tuple[IncomingCall, bytes]] = []

    def on_call(call: IncomingCall) -> None:
        call.receive(lambda message: received(call, message))

    def received(call: IncomingCall, message: bytes | None) -> None:
        assert message is not None
        calls.append((call, message))
        if len(calls) == MANY:
            for each, sent in reversed(calls):
                each.finish(Code.OK, "", (("sent", sent.decode()),), sent * 2)

    async def scene(server: CoreServer, channel: Any) -> None:
        asked = [method(channel)(b"%d" % i) for i in range(MANY)]
        assert await asyncio.gather(*asked) == [b"%d" % i * 2 for i in range(MANY)]
        for i in (0, MANY - 1):
            assert dict(await asked[i].trailing_metadata())["sent"] == str(i)

    play(scene, on_call)


def test_more_calls_than_may_be_are_refused_until_one_has_ended() -> None:
    held: list[IncomingCall] = []

    async def scene(server: CoreServer, channel: Any) -> None:
        waiting = [method(channel)(b"") for _ in range(2)]
        while len(held) < 2:
            await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(channel)(b"")
        assert refused.value.code() is Code.RESOURCE_EXHAUSTED
        held.pop().finish(Code.NOT_FOUND, "nothing here")
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(call.code()) for call in waiting], return_when=asyncio.FIRST_COMPLETED
        )
        assert {task.result() for task in done} == {Code.NOT_FOUND}
        again = method(channel)(b"")
        while len(held) < 2:
            await asyncio.sleep(0)
        for call in held:
            call.finish(Code.OK, message=b"late")
        assert await again == b"late"

    play(scene, held.append, most_calls=2)


def test_a_canceled_call_is_told_once_and_sends_nothing_more() -> None:
    told: list[str] = []
    held: list[IncomingCall] = []

    def on_call(call: IncomingCall) -> None:
        call.on_cancel = lambda: told.append("canceled")
        call.on_finish = lambda code: told.append(code.name)
        held.append(call)

    async def scene(server: CoreServer, channel: Any) -> None:
        call = method(channel)(b"")
        while not held:
            await asyncio.sleep(0)
        call.cancel()
        while not told:
            await asyncio.sleep(0)
        (canceled,) = held
        await canceled.write(b"nobody reads this")
        for _ in range(2):
            canceled.finish(Code.CANCELLED)
        assert told == ["canceled", "CANCELLED"]
        assert canceled.is_canceled

    play(scene, on_call)


def test_a_deadline_ends_a_call_and_is_known() -> None:
    left: list[float | None] = []
    ended = asyncio.Event()

    def on_call(call: IncomingCall) -> None:
        left.append(call.time_remaining())
        call.on_cancel = lambda: (call.finish(Code.DEADLINE_EXCEEDED), ended.set())

    async def scene(server: CoreServer, channel: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as passed:
            await method(channel)(b"", timeout=0.2)
        assert passed.value.code() is Code.DEADLINE_EXCEEDED
        await ended.wait()
        assert left[0] is not None

    play(scene, on_call)


def test_a_call_without_a_deadline_has_none() -> None:
    def on_call(call: IncomingCall) -> None:
        call.finish(Code.OK, message=b"none" if call.time_remaining() is None else b"some")

    async def scene(server: CoreServer, channel: Any) -> None:
        assert await method(channel)(b"") == b"none"

    play(scene, on_call)


def test_a_stream_is_read_and_written_message_by_message() -> None:
    tasks = []

    async def echo(call: IncomingCall) -> None:
        while (message := await call.read()) is not None:
            await call.write(message)
        call.finish(Code.OK)

    async def scene(server: CoreServer, channel: Any) -> None:
        sent = [b"%d" % i for i in range(20)]
        assert [message async for message in method(channel, "stream_stream")(iter(sent))] == sent

    play(scene, lambda call: tasks.append(asyncio.get_running_loop().create_task(echo(call))))


def test_a_defect_in_one_call_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def on_call(call: IncomingCall) -> None:
        call.receive(lambda message: answer(call, message))

    def answer(call: IncomingCall, message: bytes | None) -> None:
        if message == b"bad":
            call.finish(Code.INTERNAL)
            raise ValueError("defect")
        call.finish(Code.OK, message=message)

    async def scene(server: CoreServer, channel: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await method(channel)(b"bad")
        assert await method(channel)(b"good") == b"good"

    play(scene, on_call)
    assert "defect" in caplog.text


def test_what_is_in_progress_ends_before_the_server_does() -> None:
    held: list[IncomingCall] = []

    async def scene(server: CoreServer, channel: Any) -> None:
        call = method(channel)(b"")
        while not held:
            await asyncio.sleep(0)
        server.begin_stop(600)
        held[0].finish(Code.OK, message=b"done")
        assert await call == b"done"
        await server.stopped()

    play(scene, held.append)


def test_what_does_not_end_in_time_is_canceled() -> None:
    held: list[IncomingCall] = []

    def on_call(call: IncomingCall) -> None:
        call.on_cancel = lambda: call.finish(Code.CANCELLED)
        held.append(call)

    async def scene(server: CoreServer, channel: Any) -> None:
        call = method(channel)(b"")
        while not held:
            await asyncio.sleep(0)
        server.begin_stop(0)
        assert await call.code() in (Code.CANCELLED, Code.UNAVAILABLE)
        await server.stopped()
        assert held[0].is_canceled

    play(scene, on_call)


def test_a_server_that_never_started_has_stopped() -> None:
    async def run() -> None:
        server = CoreServer(print, [], 1)
        server.begin_stop(0.0)
        await server.stopped()

    asyncio.run(run())
