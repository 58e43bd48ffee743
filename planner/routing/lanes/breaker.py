"""Circuit breaker of a lane: opens when the lane fails or stalls, closes after a good probe.

closed: the lane gets work. open: it gets none until `retry_s` (a stalled lane: until its batch returns). Then
one small batch is tried; if that is about as fast as on other lanes the breaker closes, else the wait
doubles. A lane that is merely slow is excluded only while there are faster ones.
"""

from __future__ import annotations

from enum import StrEnum

FIRST_WAIT_S, MOST_WAIT_S, MOST_BROKEN_WAIT_S = 0.02, 0.1, 1.0
"""Slow lanes are probed often, since other lanes answer the query as well; failing lanes less often."""
PROBE_GOOD = 3.0
"""A probe is good if it takes at most this many times its tail on the best of the other lanes."""
SUSPECT_TAILS = 2.0
OVERDUE_TAILS, OVERDUE_EXTRA_S = 3.0, 0.005
"""Upper bound of the time after which a batch is overdue: a multiple of its tail, plus seconds."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


CLOSED, OPEN = BreakerState.CLOSED, BreakerState.OPEN
"""Global aliases, because attribute access on an Enum is five times as slow in Python 3.11."""


class Breaker:
    """State of one lane's breaker.

    broken: opened by a failure, not by a stall. retry_s: time of the next probe.
    """

    __slots__ = ("_wait_s", "broken", "retry_s", "state")

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.broken = False
        self.retry_s = 0.0
        self._wait_s = FIRST_WAIT_S

    def trip(self, now_s: float, broken: bool = False) -> None:
        """Opens the breaker after a stall or, if `broken`, a failure; the wait doubles each time."""
        self.state = BreakerState.OPEN
        self.broken = broken
        self.retry_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, MOST_BROKEN_WAIT_S if broken else MOST_WAIT_S)

    @property
    def open(self) -> bool:
        """Whether the lane gets no work but probes."""
        return self.state is not BreakerState.CLOSED

    def ready(self, now_s: float) -> bool:
        """Whether a probe may be tried now."""
        return self.state is BreakerState.OPEN and now_s >= self.retry_s

    def probed(self, took_s: float, tail_s: float, now_s: float) -> None:
        """Closes or reopens the breaker after a probe.

        tail_s: on the best other lane; infinite without one.
        """
        if took_s <= PROBE_GOOD * tail_s:
            self.close()
        else:
            self.trip(now_s)

    def close(self) -> None:
        self.state = BreakerState.CLOSED
        self.broken = False
        self._wait_s = FIRST_WAIT_S


def overdue_at_s(started_s: float, tail_s: float, last_s: float) -> float:
    """Time at which a batch of tail latency tail_s counts as stalled.

    last_s: the last moment at which another lane could still meet its first deadline, which decides once
    SUSPECT_TAILS tails have passed.
    """
    at_s = started_s + OVERDUE_TAILS * tail_s + OVERDUE_EXTRA_S
    if last_s < at_s:
        at_s = last_s
    suspect_s = started_s + SUSPECT_TAILS * tail_s
    return suspect_s if suspect_s > at_s else at_s
