"""Estimates when a request arrived, which is when its budget begins.

The times at which the event loop looks at its sockets come in, and each request that it reads; the start of a
budget goes out. Requests wait in the kernel while the loop executes a batch or reads others, and no socket
says since when. Past capacity they wait for as long as their budget, and one that is taken for new then is
parsed, executed and answered late: on a server at 1.5 times its capacity nearly all late answers were such.
"""

from __future__ import annotations

from typing import NamedTuple

RATE_MEMORY_S = 0.3
"""Time constant of the rate of arrivals."""
INF = float("inf")


class Arrival(NamedTuple):
    """When a request arrived, in seconds. earliest_s: not before. likely_s: by its place among those read.

    between_s: between two arrivals, on average; infinity if unknown.
    """

    earliest_s: float
    likely_s: float
    between_s: float

    def budget_start_s(self, budget_s: float, now_s: float) -> float:
        """Returns the earliest time, or the likely one if the earliest leaves nothing of the budget.

        The earliest time alone would reject everything read after a pause longer than the budget, and what
        arrived at its end is in time. A budget that is shorter than the time between arrivals begins now: a
        place among them says nothing so exact.
        """
        if now_s - self.earliest_s < budget_s:
            return self.earliest_s
        if budget_s < self.between_s:
            return now_s
        return max(self.earliest_s, min(self.likely_s, now_s))


class ArrivalTimes:
    """The arrivals that one event loop reads. looked_s: when it last began to read."""

    __slots__ = ("_count", "_earliest_s", "_passed_s", "_rate", "looked_s")

    def __init__(self) -> None:
        self.looked_s = 0.0
        self._earliest_s = self._passed_s = self._rate = 0.0
        self._count = 0

    def look(self, now_s: float, slept: bool) -> None:
        """Records that the loop begins to read. slept: until what it reads came, which arrives now.

        Otherwise it arrived after the last look, the first read first: sockets are read in the order in
        which they became readable, so that at an even rate each request's place tells its time.
        """
        if self._passed_s > 0:
            weight = min(1.0, self._passed_s / RATE_MEMORY_S)
            self._rate += weight * (self._count / self._passed_s - self._rate)
        self._passed_s = now_s - self.looked_s
        self._earliest_s = now_s if slept else self.looked_s
        self.looked_s = now_s
        self._count = 0

    def begin(self) -> None:
        """Counts a request that is being read since the last look."""
        self._count += 1

    def arrival(self, answered_s: float = 0.0) -> Arrival:
        """Returns when the last request begun arrived. answered_s: when its client got the answer before."""
        after_s = self._earliest_s
        between_s = 1 / self._rate if self._rate > 0 else INF
        return Arrival(max(after_s, answered_s), after_s + (self._count - 0.5) * between_s, between_s)
