"""Ticks the router at a fixed interval while queries come: rates, corrections and prices are updated there.

Each tick also reports the processor time that the server spent on requests outside of execution, from which
the router learns what reading and answering cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from polyrec.planner.routing.latency.front_cost import LoopTime
from polyrec.planner.routing.router import Router
from polyrec.server.clock import clock
from polyrec.server.dispatch.observer import Observer

TICK_S = 0.1
IDLE_TICKS = 50
"""The loop sleeps after this many ticks without a query, and wakes with the next one."""


class LoopUse:
    """Processor seconds and queries of all dispatchers on one event loop, since the start.

    Each dispatcher adds its own on every tick. Otherwise it would attribute the loop's time for queries of
    other dispatchers to its own.
    """

    __slots__ = ("queries", "spent_s")

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.queries = 0

    def add(self, spent_s: float, queries: int) -> None:
        """Adds a dispatcher's share. spent_s: executing and answering; queries: arrivals."""
        self.spent_s += spent_s
        self.queries += queries


class ControlLoop:
    """The control loop of one dispatcher.

    on_tick: called at the end of a tick; returns whether queries wait, which keep the loop running.
    answering: processor seconds of answering since the last call, and the number of answers.
    running: whether it ticks. idle_ticks: ticks since the last query. executing_s: processor seconds of
    execution on the event loop since the last tick.
    """

    def __init__(
        self,
        router: Router,
        observer: Observer,
        on_tick: Callable[[], bool],
        answering: Callable[[], tuple[float, int]],
    ) -> None:
        self._router = router
        self._observer = observer
        self._on_tick = on_tick
        self._answering = answering
        self.running = False
        self.idle_ticks = 0
        self.executing_s = 0.0
        self._spent_s = 0.0
        self._use = LoopUse()
        self._seen = (0.0, 0)
        self._timer: asyncio.TimerHandle | None = None

    def share(self, other: ControlLoop) -> None:
        """Accounts together with another control loop of the same event loop."""
        self._use = other._use
        self._seen = self._use.spent_s, self._use.queries

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to tick."""
        self.running = True
        self._spent_s, self.executing_s = time.thread_time(), 0.0
        self._seen = self._use.spent_s, self._use.queries
        self._schedule(loop)

    def close(self) -> None:
        """Ends the loop."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(TICK_S, self._tick, loop, clock() + TICK_S)

    def _tick(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        now_s = clock()
        spent_s = time.thread_time()
        self._router.tick(now_s, self._own_time(spent_s - self._spent_s))
        self._spent_s, self.executing_s = spent_s, 0.0
        self._observer.ticked(max(0.0, now_s - due_s), clock() - now_s)
        self.idle_ticks += 1
        if self._on_tick() or self.idle_ticks < IDLE_TICKS:
            self._schedule(loop)
        else:
            self.running = False

    def _own_time(self, loop_s: float) -> LoopTime:
        """Returns the loop's time for this dispatcher's queries; reading is divided by arrivals."""
        answering_s, answers = self._answering()
        queries = self._router.state.observed.new_queries
        use = self._use
        use.add(self.executing_s + answering_s, queries)
        spent_s, arrived = use.spent_s - self._seen[0], use.queries - self._seen[1]
        self._seen = use.spent_s, use.queries
        share = queries / arrived if arrived else 0.0
        return LoopTime(max(0.0, loop_s - spent_s) * share + answering_s, answering_s, answers)
