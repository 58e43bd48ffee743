"""A reading round: all queries that the caller's event loop offers before it executes anything.

Nothing is executed before the round ends, so admission control judges by its expected end. A query that needs
no less than one that this round has rejected is rejected like it, without a prediction of its own. What it
needs is known by the size of its body only, which is compared with those of the same form.
"""

from __future__ import annotations

from polyrec.planner.routing.query import Rejection

INF = float("inf")


class ReadingRound:
    """The current round. The object is reused for later rounds.

    active: has begun. rejected: by form of the body, what its rejections say of other queries of that form: a
    kilobyte of one endpoint may have 5 rows, of another 500. rows: of the last query recorded there.
    """

    __slots__ = ("_begin_s", "_end_s", "active", "rejected", "rows")

    def __init__(self) -> None:
        self.active = False
        self._begin_s = self._end_s = 0.0
        self.rejected: dict[str, SmallestRejected] = {}
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
        self.rejected.clear()

    def record_rejection(
        self, form: str, rejection: Rejection, size: float, deadline_s: float, rows: int | None = None
    ) -> None:
        """Records a rejected query. rows: None if it was rejected unparsed, by another one of its form."""
        rejected = self.rejected.get(form)
        if rejected is None:
            rejected = self.rejected[form] = SmallestRejected()
        rejected.record(rejection, size, deadline_s, rows)
        self.rows = rejected.rows


class SmallestRejected:
    """The smallest query of one form that a round has rejected, by which others are.

    rejection: its own; rows: by estimate if it was not parsed.
    """

    __slots__ = ("_deadline_s", "_row_size", "_size", "rejection", "rows")

    def __init__(self) -> None:
        self.rejection: Rejection | None = None
        self.rows = 1
        self._size = self._row_size = INF
        self._deadline_s = 0.0

    def record(self, rejection: Rejection, size: float, deadline_s: float, rows: int | None) -> None:
        """Records a rejected query, unless a smaller one is. rows: None if it was not parsed.

        Then its size tells nothing of the rows of others: a client may send an empty body, or one byte.
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
        """Whether a query is no smaller than the rejected one and has no more time."""
        return self.rejection is not None and size >= self._size and deadline_s <= self._deadline_s
