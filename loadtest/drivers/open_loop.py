"""Drives a server in an open loop: sends requests at scheduled times, without waiting for answers.

`drive` sends a `Load` and returns an `Outcome`. Latency runs from the *intended* departure, so that a stall
counts for every request that it delays (no coordinated omission). The driver also measures its own lag, and
figures are not reported if it was late.

asyncio and uvloop round timers to whole milliseconds, and a sleeping process is woken only when the scheduler
gets to it. So the driver sleeps only in longer gaps, until ten milliseconds before a departure, and polls the
loop from there. This keeps a core busy, which the server should not use.

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

from polyrec.loadtest.drivers.connection import FIRST_ERROR, NO_ANSWER, Answer, LoadError, Pool, Target
from polyrec.loadtest.drivers.load import Load
from polyrec.loadtest.results.outcome import NO_PATH, Outcome
from polyrec.models.schema.batch import F64
from polyrec.models.text import error_in, printable

NAP_S = 6e-5
POLLED_S = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the driver.

    connections: number opened beforehand; more are opened as requests overlap, up to max_connections.
    Requests that find all of them busy wait, with their latency running.
    grace_s: maximum wait for answers after the last departure.
    """

    connections: int = 16
    max_connections: int = 1024
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= self.max_connections:
            raise LoadError(f"{self.connections} connections: give 1 to {self.max_connections}")


class Answers:
    """Collects the answers to a load, as arrays by request.

    start_s: time zero of the schedule, by perf_counter. finished: set once every request has ended.
    bodies: if given, filled with the body of each answer.
    """

    def __init__(self, load: Load, bodies: dict[int, bytes] | None) -> None:
        self.start_s = 0.0
        self.finished = asyncio.Event()
        self._load = load
        self._bodies = bodies
        self._pending = requests = len(load)
        self._latency = np.full(requests, np.nan)
        self._status = np.full(requests, NO_ANSWER, np.int64)
        self._path = np.full(requests, NO_PATH, np.int16)
        self._degraded = np.zeros(requests, bool)
        self._paths: dict[bytes, int] = {b"": NO_PATH}
        self._errors: dict[int, str] = {}
        self._reasons: dict[int, str] = {}

    def add(self, index: int, answer: Answer) -> None:
        """Records how a request ended."""
        if answer.error:
            self._errors[index] = answer.error
        else:
            self._latency[index] = perf_counter() - self.start_s - self._load.due_s[index]
            self._status[index] = answer.status
            self._path[index] = self._paths.setdefault(answer.path, len(self._paths) - 1)
            self._degraded[index] = answer.degraded
            if answer.status >= FIRST_ERROR and answer.status not in self._reasons:
                self._reasons[answer.status] = _reason(answer.body)
            if self._bodies is not None:
                self._bodies[index] = answer.body
        self._pending -= 1
        if not self._pending:
            self.finished.set()

    def outcome(self, lag_s: F64, pool: Pool, grace_s: float) -> Outcome:
        """Returns the outcome so far. lag_s: delay of each departure. grace_s: time waited after the last
        departure.
        """
        for index in np.flatnonzero(self._status == NO_ANSWER).tolist():
            self._errors.setdefault(index, f"no answer within {grace_s:g} s of the end")
        return Outcome(
            self._load.due_s,
            lag_s,
            self._latency,
            self._status,
            self._load.rows,
            self._load.budget_s,
            self._path,
            tuple(name.decode("latin-1") for name in list(self._paths)[1:]),
            self._degraded,
            # copy, because closing the pool reports requests in flight as lost
            dict(self._errors),
            0.0,
            self._load.seconds,
            pool.connections,
            pool.held_back,
            self.start_s,
            dict(self._reasons),
        )


def _reason(body: bytes) -> str:
    """Returns the reason that the body of an error gives: its `error`, or the text itself."""
    error = error_in(body)
    return printable(body.decode(errors="replace").strip()) if error is None else error


async def drive(
    target: Target, load: Load, limits: Limits, bodies: dict[int, bytes] | None = None
) -> Outcome:
    """Sends request i at load.due_s[i] and collects the answers. Raises LoadError if no server listens.

    bodies: filled with the body of each answer, by request, for callers that check answers.
    """
    lag_s = np.full(len(load), np.nan)
    answers = Answers(load, bodies)
    nap = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    pool = Pool(target, limits.max_connections, answers.add, bodies is not None)
    try:
        await pool.open(limits.connections)
        start_s = answers.start_s = perf_counter() + 0.01
        for index, due_s in enumerate(load.due_s.tolist()):
            payload = load.payload(index)
            await _until(start_s + due_s, nap)
            lag_s[index] = perf_counter() - start_s - due_s
            pool.send(index, payload)
        if len(load):
            with suppress(TimeoutError):
                await asyncio.wait_for(answers.finished.wait(), limits.grace_s)
        return answers.outcome(lag_s, pool, limits.grace_s)
    finally:
        await pool.close()


async def _until(moment: float, nap: bool) -> None:
    """Returns at `moment` of perf_counter; yields to the loop at least once, so that answers are read.

    nap: sleeps between polls, for the real-time class: Linux takes 50 ms of every second from a real-time
    process that never sleeps.
    """
    while True:
        left = moment - perf_counter()
        if nap and NAP_S < left <= POLLED_S:
            sleep(NAP_S / 2)
        await asyncio.sleep(left - POLLED_S / 2 if left > POLLED_S else 0)
        if perf_counter() >= moment:
            return


def run(target: Target, load: Load, limits: Limits, bodies: dict[int, bytes] | None = None) -> Outcome:
    """Runs `drive` on a new event loop, without the garbage collector."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(drive(target, load, limits, bodies))
    finally:
        gc.enable()
        gc.unfreeze()
