"""Estimates when a request arrived in the kernel, which is when its latency budget begins.

Requests wait in socket buffers while the event loop executes a batch or reads other requests, and a socket
does not report since when. Past capacity that wait can use up the whole budget. If such a request were
considered new, it would be parsed, executed and answered late; on a server at 1.5 times its capacity, nearly
all late answers were of this kind. The estimate uses the times at which the loop polled its sockets and each
request's position among those read since.
"""

from __future__ import annotations

from typing import NamedTuple

RATE_MEMORY_S = 0.3
"""Time constant of the arrival rate."""
INF = float("inf")


class Arrival(NamedTuple):
    """When a request arrived, in seconds.

    earliest_s: lower bound.
    likely_s: estimate from its position among the requests read.
    between_s: mean time between arrivals, infinity if unknown.
    """

    earliest_s: float
    likely_s: float
    between_s: float

    def budget_start_s(self, budget_s: float, now_s: float, disturbed: bool) -> float:
        """Returns the earliest arrival, or the likely one if `disturbed` or the earliest leaves no budget.

        After a pause in which another program had the core, the earliest arrival would reject for nothing
        what came at its end. After a pause longer than the budget it would reject everything. A budget
        shorter than the mean time between arrivals begins now, since the estimate is not that precise.

        disturbed: see `RouterState.disturbed`.
        """
        if not disturbed and now_s - self.earliest_s < budget_s:
            return self.earliest_s
        if budget_s < self.between_s:
            return now_s
        return max(self.earliest_s, min(self.likely_s, now_s))


class ArrivalTimes:
    """Tracks the arrivals that one event loop reads. reading_since_s: when it last began to read sockets."""

    __slots__ = ("_count", "_earliest_s", "_passed_s", "_rate", "reading_since_s")

    def __init__(self) -> None:
        self.reading_since_s = 0.0
        self._earliest_s = self._passed_s = self._rate = 0.0
        self._count = 0

    def begin_reading(self, now_s: float, slept: bool) -> None:
        """Records that the loop begins to read sockets.

        slept: whether the loop slept until data came, which means that the data arrived just now. Otherwise
            they arrived some time since the last call. Sockets are read in the order in which they became
            readable, so at an even rate a request's position indicates its arrival.
        """
        if self._passed_s > 0:
            weight = min(1.0, self._passed_s / RATE_MEMORY_S)
            self._rate += weight * (self._count / self._passed_s - self._rate)
        self._passed_s = now_s - self.reading_since_s
        self._earliest_s = now_s if slept else self.reading_since_s
        self.reading_since_s = now_s
        self._count = 0

    def count_request(self) -> None:
        """Counts a request that is being read."""
        self._count += 1

    def arrival(self, answered_s: float = 0.0) -> Arrival:
        """Returns the arrival of the request last counted. answered_s: of its client's previous answer."""
        after_s = self._earliest_s
        between_s = 1 / self._rate if self._rate > 0 else INF
        return Arrival(max(after_s, answered_s), after_s + (self._count - 0.5) * between_s, between_s)
