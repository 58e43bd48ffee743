"""The open-loop driver: sends requests at scheduled times, without waiting for answers.

A `Load` goes in, an `Outcome` comes out. Latency runs from the *intended* departure, so that a stall counts
for every request that it delays (no coordinated omission). The driver also measures its own lag, and figures
are not reported if it was late.

asyncio and uvloop count timers in whole milliseconds, and a process that slept is woken when the scheduler
finds the time. The driver therefore sleeps only in longer gaps, until ten milliseconds before a departure,
and polls the loop from there: it keeps a core busy, which the server should not use.

`polyrec load` is its command line.
"""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np
import uvloop

from polyrec.loadtest.drivers.connection import NO_ANSWER, Answer, LoadError, Pool, Target
from polyrec.loadtest.drivers.load import Load
from polyrec.loadtest.results.outcome import NO_PATH, Outcome

NAP_S = 6e-5
POLLED_S = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """`connections` are opened beforehand, more as requests overlap, up to `max_connections`; requests that
    find those busy wait, with their latency running. grace_s: wait for answers after the last departure.
    """

    connections: int = 16
    max_connections: int = 1024
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= self.max_connections:
            raise LoadError(f"{self.connections} connections: give 1 to {self.max_connections}")


async def drive(
    target: Target, load: Load, limits: Limits, bodies: dict[int, bytes] | None = None
) -> Outcome:
    """Sends request i at load.due_s[i] and collects the answers. Raises LoadError if no server listens.

    bodies: filled with the body of each answer, by request, for callers that check answers.
    """
    due_s = load.due_s
    lag = np.full(due_s.size, np.nan)
    latency = np.full(due_s.size, np.nan)
    status = np.full(due_s.size, NO_ANSWER, np.int64)
    path = np.full(due_s.size, NO_PATH, np.int16)
    degraded = np.zeros(due_s.size, bool)
    paths: dict[bytes, int] = {b"": NO_PATH}
    errors: dict[int, str] = {}
    pending = due_s.size
    finished = asyncio.Event()

    def answered(index: int, answer: Answer) -> None:
        nonlocal pending
        if answer.error:
            errors[index] = answer.error
        else:
            latency[index] = perf_counter() - start - due_s[index]
            status[index] = answer.status
            path[index] = paths.setdefault(answer.path, len(paths) - 1)
            degraded[index] = answer.degraded
            if bodies is not None:
                bodies[index] = answer.body
        pending -= 1
        if not pending:
            finished.set()

    nap = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    pool = Pool(target, limits.max_connections, answered, bodies is not None)
    try:
        await pool.open(limits.connections)
        start = perf_counter() + 0.01
        for index, due in enumerate(due_s.tolist()):
            payload = load.payload(index)
            await _until(start + due, nap)
            lag[index] = perf_counter() - start - due
            pool.send(index, payload)
        if pending:
            with suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), limits.grace_s)
        for index in np.flatnonzero(status == NO_ANSWER).tolist():
            errors.setdefault(index, f"no answer within {limits.grace_s:g} s of the end")
        return Outcome(
            due_s,
            lag,
            latency,
            status,
            load.rows,
            load.budget_s,
            path,
            tuple(name.decode("latin-1") for name in list(paths)[1:]),
            degraded,
            # a copy: closing reports what is still in flight as lost
            dict(errors),
            0.0,
            load.seconds,
            pool.connections,
            pool.held_back,
            start,
        )
    finally:
        await pool.close()


async def _until(moment: float, nap: bool) -> None:
    """Returns at `moment` of perf_counter; gives the loop at least one turn, so that answers are read.

    nap: sleep between polls, for the real-time class: Linux takes 50 ms of each second from a process of it
    that never sleeps.
    """
    while True:
        left = moment - perf_counter()
        if nap and NAP_S < left <= POLLED_S:
            sleep(NAP_S / 2)
        await asyncio.sleep(left - POLLED_S / 2 if left > POLLED_S else 0)
        if perf_counter() >= moment:
            return


def run(target: Target, load: Load, limits: Limits, bodies: dict[int, bytes] | None = None) -> Outcome:
    """Runs `drive` on a loop of its own, without the garbage collector."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(drive(target, load, limits, bodies))
    finally:
        gc.enable()
        gc.unfreeze()
