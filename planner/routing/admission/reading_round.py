"""A reading round: all queries that the caller's event loop submits before it executes anything.

Nothing is executed before the round ends, so admission control judges by its expected end.
"""

from __future__ import annotations


class ReadingRound:
    """The current round. The object is reused for later rounds.

    active: has begun. overloaded: whether a query was rejected that a shorter backlog would have admitted.
    """

    __slots__ = ("_begin_s", "_end_s", "active", "overloaded")

    def __init__(self) -> None:
        self.active = self.overloaded = False
        self._begin_s = self._end_s = 0.0

    def expected_end_s(self, arrival_s: float, now_s: float, read_share: float) -> float:
        """Adds a query that arrived at arrival_s; returns the expected end of the round, at least now_s.

        The round lasts as long as it takes to read everything that has arrived since its earliest query.

        read_share: share of time spent on reading.
        """
        if not self.active:
            self.active = True
            self._begin_s = self._end_s = now_s
        begin_s = self._begin_s
        end_s = begin_s + (begin_s - arrival_s) * read_share
        if end_s > self._end_s:
            self._end_s = end_s
        else:
            end_s = self._end_s
        return end_s if end_s > now_s else now_s

    def end(self) -> None:
        """Ends the round."""
        self.active = self.overloaded = False
