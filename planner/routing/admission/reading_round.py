"""A reading round: all queries that the caller's event loop offers before it executes again.

Nothing is executed before the round ends, so admission control judges by its expected end. A query that needs
no less than one that this round has rejected is rejected like it, without a prediction of its own.
"""

from __future__ import annotations

from polyrec.planner.routing.query import Rejection

INF = float("inf")


class ReadingRound:
    """The current round; reused for the next one.

    active: has begun. rejection: of the smallest query rejected in this round, None without one; rows: of
    that query, by estimate if it was not parsed.
    """

    __slots__ = ("_begin_s", "_deadline_s", "_end_s", "_row_size", "_size", "active", "rejection", "rows")

    def __init__(self) -> None:
        self.active = False
        self._begin_s = self._end_s = 0.0
        self.rejection: Rejection | None = None
        self._size = self._deadline_s = 0.0
        self._row_size = INF
        self.rows = 1

    def expected_end_s(self, arrival_s: float, now_s: float, read_share: float) -> float:
        """Adds a query that arrived at arrival_s; returns the expected end of the round, not before now.

        The round takes as long as reading what has arrived since its earliest query. read_share: share of
        time that reading takes.
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

    def record_rejection(
        self, rejection: Rejection, size: float, deadline_s: float, rows: int | None = None
    ) -> None:
        """Records a rejected query. The smallest of a round is used to reject others.

        rows: None if it was not parsed. Then its size tells nothing of the rows of others: a client may send
        an empty body, or one byte.
        """
        if self.rejection is not None and size >= self._size:
            return
        if rows is None:
            rows = max(1, round(self.estimated_rows(size)))
        else:
            self._row_size = size / rows
        self.rejection, self._size, self._deadline_s, self.rows = rejection, size, deadline_s, rows

    def estimated_rows(self, size: float) -> float:
        """Estimates the rows of a query from its size and the smallest rejected query that was parsed."""
        return size / self._row_size if size < INF else INF

    def covers(self, size: float, deadline_s: float) -> bool:
        """Whether this round rejected a query that was no larger and had no less time."""
        return self.rejection is not None and size >= self._size and deadline_s <= self._deadline_s
