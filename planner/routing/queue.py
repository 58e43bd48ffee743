"""What waits: pieces of queries in order of priority and deadline, counted in rows.

Strict priority would let one class of clients starve the others, so a SHARE of the room is kept for them
(here) and of the lanes' time (share.py).

A piece is (level, order, number, query, first, rows): rows [first, first + rows) of a query that no lane
has taken. Sorted, so that a batch is a prefix; most arrivals have the latest deadline and go to the end.
Queries that are settled meanwhile (cancelled, answered by a probe) stay until they are met; their rows
count no more from the moment they are forgotten.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from polyrec.planner.routing.query import Query

Piece = tuple[int, float, int, Query, int, int]
LOWEST = 1 << 30
"""The level of queries without priority, beyond MOST_PRIORITY."""
SHARE = 0.1
"""Of room and lane time, kept for queries of other priorities than those that take the rest."""


class Queue:
    """Pieces, ascending. rows: of the unsettled ones. earliest_s: no deadline in it is earlier.

    privileged: rows of those with a priority. credit_s: lane time that is owed to the others (share.py).
    """

    __slots__ = ("_number", "credit_s", "earliest_s", "pieces", "privileged", "rows")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.rows = self.privileged = 0
        self.earliest_s = float("inf")
        self.credit_s = 0.0
        self._number = 0

    def over(self, rows: int, privileged: bool, most: int) -> int:
        """Rows by which the queue would be too long with `rows` more; 0 or less: there is room.

        Each class, privileged or not, may have `most` rows; SHARE of that is kept beyond for the other one.
        """
        own = self.privileged if privileged else self.rows - self.privileged
        return rows + max(own - most, self.rows - int((1 + SHARE) * most))

    def push(self, query: Query, first: int, rows: int, order: float) -> None:
        """Adds rows that wait; `order` is the deadline, or the arrival where first come is served first."""
        self._number += 1
        piece = (query.priority or LOWEST, order, self._number, query, first, rows)
        pieces = self.pieces
        if pieces and piece < pieces[-1]:
            insort(pieces, piece)
        else:
            pieces.append(piece)
        self.rows += rows
        if query.priority:
            self.privileged += rows
        if query.deadline_s < self.earliest_s:
            self.earliest_s = query.deadline_s

    def clean(self) -> list[Piece]:
        """The pieces, the first and the last of which (if any) are of unsettled queries."""
        pieces = self.pieces
        while pieces and pieces[0][3].settled:
            self.forget(pieces[0][3])
            del pieces[0]
        while pieces and pieces[-1][3].settled:
            self.forget(pieces[-1][3])
            del pieces[-1]
        return pieces

    def forget(self, query: Query) -> None:
        """The rows of a settled query count no more."""
        rows = query.rows - query.taken_rows
        self.rows -= rows
        if query.priority:
            self.privileged -= rows
        query.taken_rows = query.rows

    def clear(self) -> None:
        """Takes all pieces out."""
        self.pieces.clear()
        self.rows = self.privileged = 0

    def sweep(self, now_s: float, doomed: float) -> list[Query]:
        """Takes out, and settles, queries whose deadline is within `doomed` seconds of now."""
        out: list[Query] = []
        kept: list[Piece] = []
        earliest_s = float("inf")
        for piece in self.pieces:
            query = piece[3]
            if query.settled:
                self.forget(query)
            elif query.deadline_s - doomed <= now_s:
                query.settled = True
                self.forget(query)
                out.append(query)
            else:
                kept.append(piece)
                if query.deadline_s < earliest_s:
                    earliest_s = query.deadline_s
        self.pieces[:] = kept
        self.earliest_s = earliest_s
        return out

    def unsettled(self) -> Iterator[Piece]:
        return (piece for piece in self.pieces if not piece[3].settled)
