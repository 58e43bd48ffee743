"""What waits: pieces of queries in order of priority and deadline, counted in rows.

A piece is (level, order, number, query, first, rows): rows [first, first + rows) of a query that no lane
has taken. Sorted, so that a batch is a prefix; most arrivals have the latest deadline and go to the end.
Queries that are settled meanwhile (cancelled, answered by a probe) stay until they are met; their rows
count no more from the moment they are forgotten.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from planner.routing.query import Query

Piece = tuple[int, float, int, Query, int, int]
LOWEST = 1 << 30


class Queue:
    """Pieces, ascending. rows: of the unsettled ones. earliest_s: no deadline in it is earlier."""

    __slots__ = ("_number", "earliest_s", "pieces", "rows")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.rows = 0
        self.earliest_s = float("inf")
        self._number = 0

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
        self.rows -= query.rows - query.taken_rows
        query.taken_rows = query.rows

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
