"""Circuit breaker of a lane: opens when the lane fails or stalls, closes after a good probe.

While closed, the lane gets work. While open, it gets none until `retry_s`, or in case of a stall until its
batch returns. Then one small batch is tried as a probe: if it takes about as long as on other lanes the
breaker closes, otherwise the wait doubles. A lane that is merely slow is excluded only while there are faster
ones.
"""

from __future__ import annotations

from enum import StrEnum

FIRST_WAIT_S, MAX_WAIT_S, MAX_BROKEN_WAIT_S = 0.02, 0.1, 1.0
"""First wait, and maximum waits for slow and for failing lanes.

Slow lanes are probed often, since other lanes answer the probe's query as well."""
PROBE_GOOD = 3.0
"""A probe succeeds if it takes at most this many times its tail on the best other lane."""
SUSPECT_TAILS = 2.0
OVERDUE_TAILS, OVERDUE_EXTRA_S = 3.0, 0.005
"""A batch is overdue at the latest after this multiple of its tail plus these seconds."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


CLOSED, OPEN = BreakerState.CLOSED, BreakerState.OPEN
"""Aliases, since attribute access on an Enum takes five times as long as a global in Python 3.11."""


class Breaker:
    """State of one lane's breaker.

    broken: whether a failure rather than a stall opened it.
    retry_s: time of the next probe.
    """

    __slots__ = ("_wait_s", "broken", "retry_s", "state")

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.broken = False
        self.retry_s = 0.0
        self._wait_s = FIRST_WAIT_S

    def trip(self, now_s: float, broken: bool = False) -> None:
        """Opens the breaker after a stall or, if `broken`, a failure. The wait doubles each time."""
        self.state = BreakerState.OPEN
        self.broken = broken
        self.retry_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, MAX_BROKEN_WAIT_S if broken else MAX_WAIT_S)

    @property
    def open(self) -> bool:
        """Whether the lane gets only probes."""
        return self.state is not BreakerState.CLOSED

    def ready(self, now_s: float) -> bool:
        """Whether a probe may be tried now."""
        return self.state is BreakerState.OPEN and now_s >= self.retry_s

    def probed(self, took_s: float, tail_s: float, now_s: float) -> None:
        """Closes or reopens the breaker after a probe.

        tail_s: tail latency on the best other lane, infinite if there is none.
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
    """Returns the time at which a batch with tail latency tail_s counts as stalled.

    last_s: the last time at which another lane could still meet the batch's first deadline. It counts once
        SUSPECT_TAILS tails have passed.
    """
    at_s = started_s + OVERDUE_TAILS * tail_s + OVERDUE_EXTRA_S
    if last_s < at_s:
        at_s = last_s
    suspect_s = started_s + SUSPECT_TAILS * tail_s
    return suspect_s if suspect_s > at_s else at_s
