"""The reader of messages bounds how many calls send at a time, and how long each may take."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from polyrec.server.errors import Malformed, TooBusy, TooSlow
from polyrec.server.grpc.limits.reading import MessageReader


class Sending:
    """gRPC's side of a call whose message comes with `arrive`."""

    def __init__(self) -> None:
        self.arrive: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def read(self) -> object:
        return await self.arrive


def test_as_many_calls_are_read_as_may_be_and_the_earliest_gives_way_to_the_next() -> None:
    exceeded: list[str] = []

    async def run() -> list[bytes]:
        reader = MessageReader(2, 600, exceeded.append)
        calls = [Sending() for _ in range(3)]
        reading = [asyncio.create_task(reader.only(call)) for call in calls]
        with pytest.raises(TooBusy, match="more than 2 calls are sending"):
            await reading[0]
        assert not calls[1].arrive.cancelled()
        for call in calls[1:]:
            call.arrive.set_result(b"message")
        return await asyncio.gather(*reading[1:])

    assert asyncio.run(run()) == [b"message", b"message"]
    assert exceeded == ["grpc_reading"]


def test_calls_without_a_message_do_not_block_others() -> None:
    async def run() -> list[bytes]:
        reader = MessageReader(2, 600, [].append)
        silent, found = [], []
        for i in range(20):
            silent += [asyncio.create_task(reader.only(Sending())) for _ in range(4)]
            await asyncio.sleep(0)
            honest = Sending()
            honest.arrive.set_result(b"%d" % i)
            found.append(await reader.only(honest))
        for call in silent:
            call.cancel()
        await asyncio.gather(*silent, return_exceptions=True)
        return found

    assert asyncio.run(run()) == [b"%d" % i for i in range(20)]


def test_a_message_that_does_not_arrive_gives_its_place_back() -> None:
    exceeded: list[str] = []

    async def run() -> None:
        reader = MessageReader(1, 0.001, exceeded.append)
        for _ in range(2):
            with pytest.raises(TooSlow, match="did not arrive"):
                await reader.only(Sending())

    asyncio.run(run())
    assert exceeded == ["grpc_message"] * 2


def test_a_call_without_a_message_is_malformed() -> None:
    async def run() -> None:
        call = Sending()
        call.arrive.set_result(grpc.aio.EOF)
        with pytest.raises(Malformed, match="no message"):
            await MessageReader(1, 600, print).only(call)

    asyncio.run(run())


def test_a_call_is_read_that_comes_just_when_the_earliest_times_out() -> None:
    async def run() -> bytes:
        reader = MessageReader(1, 0.0, [].append)
        silent = asyncio.create_task(reader.only(Sending()))
        for _ in range(2):  # it begins; its time is over, of which it does not know yet
            await asyncio.sleep(0)
        honest = Sending()
        honest.arrive.set_result(b"message")
        found = await reader.only(honest)
        with pytest.raises((TooBusy, TooSlow)):
            await silent
        return found

    assert asyncio.run(run()) == b"message"
