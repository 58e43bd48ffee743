"""The reader of messages bounds how many calls send at a time, and how long each may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from polyrec.server.errors import Malformed, TooBusy, TooSlow
from polyrec.server.grpc.transport.reading import MessageReader


class Sending:
    """gRPC's side of a call whose message comes with `arrive`."""

    def __init__(self) -> None:
        self.arrive: Callable[[bytes | None], object]

    def receive(self, received: Callable[[bytes | None], object]) -> None:
        self.arrive = received


def test_as_many_calls_are_read_as_may_be_and_the_next_is_refused() -> None:
    exceeded: list[str] = []

    async def run() -> list[bytes]:
        reader = MessageReader(2, 600, exceeded.append)
        calls = [Sending(), Sending()]
        reading = [asyncio.create_task(reader.only(call)) for call in calls]
        await asyncio.sleep(0)
        with pytest.raises(TooBusy, match="more than 2 calls are sending"):
            await reader.only(Sending())
        for call in calls:
            call.arrive(b"message")
        found = await asyncio.gather(*reading)
        # there is room again
        last = Sending()
        reading = [asyncio.create_task(reader.only(last))]
        await asyncio.sleep(0)
        last.arrive(b"last")
        return [*found, *await asyncio.gather(*reading)]

    assert asyncio.run(run()) == [b"message", b"message", b"last"]
    assert exceeded == ["grpc_reading"]


def test_a_message_that_does_not_arrive_gives_its_place_back() -> None:
    exceeded: list[str] = []

    async def run() -> None:
        reader = MessageReader(1, 0.001, exceeded.append)
        calls = [Sending(), Sending()]
        for call in calls:
            with pytest.raises(TooSlow, match="did not arrive"):
                await reader.only(call)
        # it comes too late
        calls[0].arrive(b"message")

    asyncio.run(run())
    assert exceeded == ["grpc_message"] * 2


def test_a_call_without_a_message_is_malformed() -> None:
    async def run() -> None:
        call = Sending()
        reading = asyncio.create_task(MessageReader(1, 600, print).only(call))
        await asyncio.sleep(0)
        call.arrive(None)
        with pytest.raises(Malformed, match="no message"):
            await reading

    asyncio.run(run())
