"""Ticks the router at a fixed interval while queries arrive.

On a tick the router updates arrival rates, latency corrections and prices. Each tick also reports the CPU
time that the server spent on requests outside of execution, from which the router learns the cost of reading
and answering a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from polyrec.planner.routing.latency.front_cost import LoopTime
from polyrec.planner.routing.router import Router
from polyrec.server.clock import clock
from polyrec.server.dispatch.observer import Observer
from polyrec.server.failure_log import FailureLog

log = logging.getLogger("polyrec.dispatcher")

TICK_S = 0.1
IDLE_TICKS = 50
"""Ticks without a query after which the loop sleeps; the next query wakes it."""


class LoopUse:
    """CPU seconds and queries of all dispatchers on one event loop, since the start.

    Every dispatcher adds its share on each tick; otherwise each would attribute the loop's whole CPU time to
    its own queries.
    """

    __slots__ = ("queries", "spent_s")

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.queries = 0

    def add(self, spent_s: float, queries: int) -> None:
        """Adds a dispatcher's share. spent_s: CPU time of executing and answering. queries: arrivals."""
        self.spent_s += spent_s
        self.queries += queries


class ControlLoop:
    """The control loop of one dispatcher.

    on_tick: called at the end of a tick; returns whether queries wait, which keeps the loop running.
    take_answering: returns and resets the CPU seconds of answering and the number of answers.
    running: whether it ticks now.
    idle_ticks: ticks since the last query.
    executing_s: CPU seconds of execution on the event loop since the last tick.
    """

    def __init__(
        self,
        router: Router,
        observer: Observer,
        on_tick: Callable[[], bool],
        take_answering: Callable[[], tuple[float, int]],
    ) -> None:
        self._router = router
        self._observer = observer
        self._on_tick = on_tick
        self._take_answering = take_answering
        self.running = False
        self.idle_ticks = 0
        self.executing_s = 0.0
        self._spent_s = 0.0
        self._use = LoopUse()
        self._use_at_tick = (0.0, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._failures = FailureLog(log, "the router's tick failed; rates and prices may be outdated")

    def share(self, other: ControlLoop) -> None:
        """Shares CPU accounting with another control loop on the same event loop."""
        self._use = other._use
        self._use_at_tick = self._use.spent_s, self._use.queries

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts ticking."""
        self.running = True
        self._spent_s, self.executing_s = time.thread_time(), 0.0
        self._use_at_tick = self._use.spent_s, self._use.queries
        self._schedule(loop)

    def close(self) -> None:
        """Stops ticking."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(TICK_S, self._tick, loop, clock() + TICK_S)

    def _tick(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        try:
            goes_on = self._ticked(due_s)
        except Exception:
            # without further ticks, rates and prices would stay as they are for good
            goes_on = True
            self._failures.exception()
        if goes_on:
            self._schedule(loop)
        else:
            self.running = False

    def _ticked(self, due_s: float) -> bool:
        """Ticks; returns whether to go on."""
        now_s = clock()
        spent_s = time.thread_time()
        self._router.tick(now_s, self._loop_time_share(spent_s - self._spent_s))
        self._spent_s, self.executing_s = spent_s, 0.0
        self._observer.ticked(max(0.0, now_s - due_s), clock() - now_s)
        self.idle_ticks += 1
        return self._on_tick() or self.idle_ticks < IDLE_TICKS

    def _loop_time_share(self, loop_s: float) -> LoopTime:
        """Returns this dispatcher's share of the loop's CPU time; reading time is split by arrivals."""
        answering_s, answers = self._take_answering()
        queries = self._router.state.observed.new_queries
        use = self._use
        use.add(self.executing_s + answering_s, queries)
        spent_s, arrived = use.spent_s - self._use_at_tick[0], use.queries - self._use_at_tick[1]
        self._use_at_tick = use.spent_s, use.queries
        share = queries / arrived if arrived else 0.0
        return LoopTime(max(0.0, loop_s - spent_s) * share + answering_s, answering_s, answers)
