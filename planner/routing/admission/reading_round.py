"""A reading round: all queries that the caller's event loop offers before it executes anything.

Nothing executes before the round ends, so admission control predicts from its expected end. A query at least
as demanding as one already rejected in the round is rejected too, without a prediction of its own.
"""

from __future__ import annotations

from polyrec.planner.routing.query import Rejection

INF = float("inf")


class ReadingRound:
    """The current round. The object is reused for later rounds.

    active: whether the round has begun.
    rejection: rejection of the smallest query rejected in this round, None if there is none.
    rows: rows of the last smallest rejected query.
    """

    __slots__ = ("_begin_s", "_deadline_s", "_end_s", "_size", "active", "rejection", "rows")

    def __init__(self) -> None:
        self.active = False
        self._begin_s = self._end_s = 0.0
        self.rejection: Rejection | None = None
        self._size = self._deadline_s = 0.0
        self.rows = 1

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
        self.active = False
        self.rejection = None

    def record_rejection(self, rejection: Rejection, size: float, deadline_s: float, rows: int) -> None:
        """Records a rejected query. The smallest one in a round is used to reject others."""
        if self.rejection is None or size < self._size:
            self.rejection, self._size, self._deadline_s, self.rows = rejection, size, deadline_s, rows

    def estimated_rows(self, size: float) -> float:
        """Estimates a query's rows from its size and the rejected query's rows per size."""
        return self.rows * (size / self._size) if size < INF else INF

    def covers(self, size: float, deadline_s: float) -> bool:
        """Whether this round rejected a query that was no larger and had at least as much time."""
        return self.rejection is not None and size >= self._size and deadline_s <= self._deadline_s
