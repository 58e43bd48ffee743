"""A closed loop: a number of connections, each sending its next request when it has its answer.

Whole requests go in, how many were answered comes out. It says what a server spends while it is never idle;
what a load does to latency is for the open loop (loadtest/drivers/open_loop.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence, Set
from itertools import cycle

from polyrec.loadtest.drivers.connection import Answer, LoadError, Pool, Target

ANSWERED = frozenset({200})


def closed_loop(
    url: str, requests: Sequence[bytes], connections: int, seconds: float, wanted: Set[int] = ANSWERED
) -> int:
    """Sends for so long; the number answered. Raises LoadError at the first answer of another status."""
    return asyncio.run(_closed_loop(url, requests, connections, seconds, wanted))


async def _closed_loop(
    url: str, requests: Sequence[bytes], connections: int, seconds: float, wanted: Set[int]
) -> int:
    turn = cycle(requests)
    ends = time.perf_counter() + seconds
    sent = answered = 0
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next_one(index: int, answer: Answer) -> None:
        nonlocal sent, answered
        if answer.status not in wanted:
            if not done.done():
                why = answer.offence or f"status {answer.status}"
                done.set_exception(LoadError(f"the server did not answer while it was measured: {why}"))
            return
        answered += 1
        if time.perf_counter() < ends:
            sent += 1
            pool.send(sent, next(turn))
        elif answered == sent and not done.done():
            done.set_result(None)

    pool = Pool(Target(url), connections, next_one)
    await pool.open(connections)
    try:
        for _ in range(connections):
            sent += 1
            pool.send(sent, next(turn))
        await done
    finally:
        await pool.close()
    return answered
