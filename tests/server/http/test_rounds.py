"""When what is read may have arrived: while the loop was busy, but not while it slept."""

from __future__ import annotations

import asyncio
import socket

from server.http.rounds import TICK_S, Rounds, clock, rounds_of


def _busy() -> None:
    sum(range(20_000))


async def _looked(rounds: Rounds) -> None:
    """A round of reading, to its end."""
    rounds.arrived_s()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_what_is_read_after_work_may_have_arrived_before_it() -> None:
    async def scene() -> tuple[float, float]:
        rounds = Rounds(asyncio.get_running_loop())
        await _looked(rounds)
        began_s = clock()
        _busy()
        return began_s, rounds.arrived_s()

    began_s, arrived_s = asyncio.run(scene())
    assert arrived_s <= began_s


def test_what_comes_during_work_that_was_queued_before_reading_may_have_arrived_before_it() -> None:
    async def scene() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        rounds = Rounds(loop)
        await _looked(rounds)
        began: list[float] = []
        loop.call_soon(lambda: (began.append(clock()), _busy()))
        await _looked(rounds)
        return began[0], rounds.arrived_s()

    began_s, arrived_s = asyncio.run(scene())
    assert arrived_s <= began_s


def test_what_wakes_a_sleeping_loop_has_just_arrived() -> None:
    async def scene() -> tuple[float, float]:
        rounds = Rounds(asyncio.get_running_loop())
        await _looked(rounds)
        slept_s = clock()
        await asyncio.sleep(0.002)
        return slept_s, rounds.arrived_s()

    slept_s, arrived_s = asyncio.run(scene())
    assert arrived_s >= slept_s + 0.002


def test_all_that_one_round_reads_has_the_same_earliest_moment() -> None:
    async def scene() -> list[float]:
        rounds = Rounds(asyncio.get_running_loop())
        await _looked(rounds)
        _busy()
        first = rounds.arrived_s()
        _busy()
        return [first, rounds.arrived_s()]

    first, second = asyncio.run(scene())
    assert first == second


def test_the_next_round_begins_where_the_last_one_did() -> None:
    async def scene() -> tuple[float, float, float]:
        rounds = Rounds(asyncio.get_running_loop())
        await _looked(rounds)
        _busy()
        between_s = clock()
        first = rounds.arrived_s()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return first, between_s, rounds.arrived_s()

    first, between_s, second = asyncio.run(scene())
    assert first <= between_s <= second


def test_what_the_kernel_had_for_a_shorter_time_has_not_waited_since_the_loop_looked() -> None:
    """Data comes at a known moment of a long absence of the loop. The kernel's ticks may be off by one."""

    async def scene(far: socket.socket, near: socket.socket) -> tuple[float, float, float, float]:
        rounds = Rounds(asyncio.get_running_loop())
        await _looked(rounds)
        looked_s = clock()
        while clock() - looked_s < 25 * TICK_S:  # not a sleep: that would be noticed
            _busy()
        sent_s = clock()
        far.sendall(b"x")
        begun_s = clock()
        arrived_s = rounds.arrived_s(near)
        return sent_s, arrived_s, clock() - begun_s, rounds.arrived_s()

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as far,
        listener.accept()[0] as near,
    ):
        sent_s, arrived_s, took_s, looked_s = asyncio.run(scene(far, near))
    assert looked_s <= sent_s - 25 * TICK_S
    assert sent_s - 3 * TICK_S - took_s <= arrived_s <= sent_s + TICK_S


def test_a_loop_has_one() -> None:
    async def scene() -> tuple[Rounds, Rounds]:
        loop = asyncio.get_running_loop()
        return rounds_of(loop), rounds_of(loop)

    first, second = asyncio.run(scene())
    assert first is second
    assert asyncio.run(scene())[0] is not first
