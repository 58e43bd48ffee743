"""Drives a server in a closed loop: each connection sends its next request when it has its answer.

It measures the cost per request of a server that is never idle. To measure latency under load, use the open
loop (loadtest/drivers/open_loop.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence, Set
from itertools import cycle

from polyrec.loadtest.drivers.connection import Answer, LoadError, Pool, Target

ANSWERED = frozenset({200})


def closed_loop(
    url: str, requests: Sequence[bytes], connections: int, seconds: float, statuses: Set[int] = ANSWERED
) -> int:
    """Sends for `seconds`; returns the number of answers.

    requests: whole HTTP requests. Raises LoadError at the first answer whose status is not in `statuses`.
    """
    return asyncio.run(_closed_loop(url, requests, connections, seconds, statuses))


async def _closed_loop(
    url: str, requests: Sequence[bytes], connections: int, seconds: float, statuses: Set[int]
) -> int:
    rotation = cycle(requests)
    ends = time.perf_counter() + seconds
    sent = answered = 0
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send_next(index: int, answer: Answer) -> None:
        nonlocal sent, answered
        if answer.status not in statuses:
            if not done.done():
                reason = answer.error or f"status {answer.status}"
                done.set_exception(LoadError(f"the server did not answer while it was measured: {reason}"))
            return
        answered += 1
        if time.perf_counter() < ends:
            sent += 1
            pool.send(sent, next(rotation))
        elif answered == sent and not done.done():
            done.set_result(None)

    pool = Pool(Target(url), connections, send_next)
    await pool.open(connections)
    try:
        for _ in range(connections):
            sent += 1
            pool.send(sent, next(rotation))
        await done
    finally:
        await pool.close()
    return answered
