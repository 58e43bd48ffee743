"""Drives a server in a closed loop: each connection sends its next request when it has its answer.

It measures the cost per request of a server that is never idle. To measure latency under load, use the open
loop (loadtest/drivers/open_loop.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from polyrec.loadtest.drivers.connection import Answer, LoadError, Pool, Target
from polyrec.models.schema.batch import F64

ANSWERED = frozenset({200})


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Result of a closed loop. latency_s: latency of each answer, in order of arrival."""

    seconds: float
    latency_s: F64

    @property
    def requests_per_s(self) -> float:
        return self.latency_s.size / self.seconds

    @property
    def p50_s(self) -> float:
        return float(np.median(self.latency_s))


def closed_loop(
    url: str, requests: Sequence[bytes], connections: int, seconds: float, statuses: Set[int] = ANSWERED
) -> int:
    """Sends for `seconds`; returns the number of answers.

    requests: whole HTTP requests. Raises LoadError at the first answer whose status is not in `statuses`.
    """
    return asyncio.run(keep_busy(Target(url), requests, connections, seconds, statuses)).latency_s.size


async def keep_busy(
    target: Target,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    statuses: Set[int] = ANSWERED,
    bodies: dict[int, bytes] | None = None,
) -> ClosedLoop:
    """Runs a closed loop as `closed_loop` does. bodies: filled with the body of each answer, by request."""
    departed_s: dict[int, float] = {}
    latency_s: list[float] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sent = 0

    def send() -> None:
        nonlocal sent
        index, sent = sent, sent + 1
        departed_s[index] = time.perf_counter()
        pool.send(index, requests[index % len(requests)])

    def answered(index: int, answer: Answer) -> None:
        now_s = time.perf_counter()
        latency_s.append(now_s - departed_s.pop(index))
        if bodies is not None:
            bodies[index] = answer.body
        if answer.status not in statuses:
            if not done.done():
                reason = answer.error or f"status {answer.status} {answer.body[:200]!r}"
                done.set_exception(LoadError(f"{target.url} did not answer while it was measured: {reason}"))
        elif now_s < ends_s:
            send()
        elif not departed_s and not done.done():
            done.set_result(None)

    pool = Pool(target, connections, answered, bodies=bodies is not None)
    await pool.open(connections)
    began_s = time.perf_counter()
    ends_s = began_s + seconds
    try:
        for _ in range(connections):
            send()
        await done
        return ClosedLoop(time.perf_counter() - began_s, np.array(latency_s))
    finally:
        await pool.close()
