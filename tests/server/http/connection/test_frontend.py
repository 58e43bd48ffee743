"""Tests the state that connections share: the arrival times of their requests."""

from __future__ import annotations

import asyncio

from polyrec.server.app.engine import Engine
from polyrec.server.clock import clock
from polyrec.server.http.app import create_app
from polyrec.server.http.connection.frontend import HttpFrontend

BUSY_S = 0.02


def front_of(engine: Engine) -> HttpFrontend:
    app = create_app(engine)
    return HttpFrontend(app, app.hot, engine)


async def read(frontend: HttpFrontend) -> float:
    """A round of reading, to its end."""
    arrived_s = frontend.arrival().earliest_s
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return arrived_s


def test_requests_read_after_a_batch_may_have_arrived_before_it(engine: Engine) -> None:
    async def scene() -> tuple[float, float]:
        frontend = front_of(engine)
        looked_s = clock()
        await read(frontend)
        while clock() < looked_s + BUSY_S:
            pass
        return looked_s, frontend.arrival().earliest_s

    looked_s, arrived_s = asyncio.run(scene())
    assert looked_s <= arrived_s < looked_s + BUSY_S


def test_request_that_wakes_the_loop_has_just_arrived(engine: Engine) -> None:
    async def scene() -> tuple[float, float]:
        frontend = front_of(engine)
        await read(frontend)
        await asyncio.sleep(BUSY_S)
        return clock(), frontend.arrival().earliest_s

    woken_s, arrived_s = asyncio.run(scene())
    assert arrived_s >= woken_s


def test_all_that_one_round_reads_arrived_at_the_same_time(engine: Engine) -> None:
    async def scene() -> tuple[float, float]:
        frontend = front_of(engine)
        return frontend.arrival().earliest_s, frontend.arrival().earliest_s

    first_s, second_s = asyncio.run(scene())
    assert first_s == second_s


def test_a_client_that_waited_for_an_answer_sent_its_next_request_after_it(engine: Engine) -> None:
    async def scene() -> tuple[float, float, float]:
        frontend = front_of(engine)
        arrived_s = frontend.arrival().earliest_s
        return (
            arrived_s,
            frontend.arrival(arrived_s - 1).earliest_s,
            frontend.arrival(arrived_s + 1).earliest_s,
        )

    arrived_s, before_s, after_s = asyncio.run(scene())
    assert before_s == arrived_s
    assert after_s == arrived_s + 1


def test_requests_read_after_a_batch_arrived_in_reading_order(engine: Engine) -> None:
    async def scene() -> list[float]:
        frontend = front_of(engine)
        likely = []
        for _ in range(2):
            looked_s = clock()
            likely.clear()
            for _ in range(8):
                frontend.begin_request()
                likely.append(frontend.arrival().likely_s)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            while clock() < looked_s + BUSY_S:
                pass
        return likely

    likely = asyncio.run(scene())
    assert likely == sorted(set(likely))
