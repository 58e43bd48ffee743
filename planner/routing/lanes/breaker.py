"""The breaker of a lane: out at once when it fails or stalls, back by a probe.

closed: the lane works. open: it gets nothing until `again_s` (or, stalled, until its batch returns). Then
one small batch is tried; if that is about as fast as on other lanes the lane is closed again, else the wait
doubles. A lane that is merely slow is kept out for the sake of faster ones: where there are none it works on.
"""

from __future__ import annotations

from enum import StrEnum

FIRST_WAIT_S, MOST_WAIT_S, MOST_BROKEN_WAIT_S = 0.02, 0.1, 1.0
"""A lane that is slow is tried often, on queries that others answer as well; one that fails not so often."""
PROBE_GOOD = 3.0
"""A probe is good if it takes at most this many times its tail on the best of the other lanes."""
SUSPECT_TAILS = 2.0
OVERDUE_TAILS, OVERDUE_EXTRA_S = 3.0, 0.005
"""A batch is overdue after this many times its tail and this much more, at the latest."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


CLOSED, OPEN = BreakerState.CLOSED, BreakerState.OPEN
"""Members by names of their own: asking an enumeration for one takes Python 3.11 five times as long."""


class Breaker:
    """Whether a lane gets work. Changed by what its batches do."""

    __slots__ = ("_wait_s", "again_s", "broken", "state")

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.broken = False
        self.again_s = 0.0
        self._wait_s = FIRST_WAIT_S

    def trip(self, now_s: float, broken: bool = False) -> None:
        """It stalled, or it failed (`broken`): nothing until the wait is over, which doubles each time."""
        self.state = BreakerState.OPEN
        self.broken = broken
        self.again_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, MOST_BROKEN_WAIT_S if broken else MOST_WAIT_S)

    @property
    def open(self) -> bool:
        """It gets no work but probes."""
        return self.state is not BreakerState.CLOSED

    def ready(self, now_s: float) -> bool:
        """Whether a probe may be tried now."""
        return self.state is BreakerState.OPEN and now_s >= self.again_s

    def probed(self, took_s: float, tail_s: float, now_s: float) -> None:
        """A probe came back. tail_s: what it would take on the best other lane; infinite if there is none."""
        if took_s <= PROBE_GOOD * tail_s:
            self.close()
        else:
            self.trip(now_s)

    def close(self) -> None:
        self.state = BreakerState.CLOSED
        self.broken = False
        self._wait_s = FIRST_WAIT_S


def overdue_at_s(started_s: float, tail_s: float, last_s: float) -> float:
    """When a batch that should take tail_s at most counts as stalled.

    last_s: the last moment at which another lane could still make its first deadline; after
    twice the tail that decides.
    """
    at_s = started_s + OVERDUE_TAILS * tail_s + OVERDUE_EXTRA_S
    if last_s < at_s:
        at_s = last_s
    suspect_s = started_s + SUSPECT_TAILS * tail_s
    return suspect_s if suspect_s > at_s else at_s
