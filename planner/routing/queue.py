"""The queue: pieces of queries in order of priority and deadline, with limits in rows.

It is a sorted list, so that a batch is a slice; most arrivals have the latest deadline and are appended.
Queries that are settled while they wait (canceled, answered by a probe) remain until `trim` or `sweep`
removes them, but their rows stop counting at once. Strict priority would let one class of clients starve the
others, so RESERVED_SHARE of the capacity (here) and of lane time (fair_share.py) is reserved for them.

A query whose rows are still being read from a slow tier is held outside the sorted list, so that hot queries
need not wait for it. Once its rows are read it is ready, and is queued when nothing else waits or when its
time runs out (holding.py).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from polyrec.planner.routing.query import Query

LOWEST = 1 << 30
"""Level of queries without priority; larger than MAX_PRIORITY."""
RESERVED_SHARE = 0.1
"""Share of queue capacity and lane time that is reserved for lower priorities."""


class Piece(NamedTuple):
    """Rows [first, first + rows) of a query, waiting for a lane.

    Pieces compare by level (the priority, or LOWEST without one), then order_s (the deadline, or the arrival
    if the queue is `fifo`), then number, which is unique, so that queries are never compared.
    """

    level: int
    order_s: float
    number: int
    query: Query
    first: int
    rows: int


class Queue:
    """Waiting pieces in ascending order.

    fifo: whether pieces of equal level are ordered by arrival instead of deadline.
    rows, privileged_rows: rows of unsettled queries, and of those with a priority.
    earliest_s: lower bound of all deadlines.
    credit_s: lane time owed to lower priorities (fair_share.py).
    held: held queries, and the time at which each must be queued at the latest.
    release_s: lower bound of these times.
    """

    __slots__ = (
        "_number",
        "credit_s",
        "earliest_s",
        "fifo",
        "held",
        "pieces",
        "privileged_rows",
        "ready",
        "release_s",
        "rows",
    )

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.fifo = False
        self.rows = self.privileged_rows = 0
        self.earliest_s = float("inf")
        self.credit_s = 0.0
        self.held: dict[Query, float] = {}
        self.ready: deque[Query] = deque()
        self.release_s = float("inf")
        self._number = 0

    @property
    def has_waiting(self) -> bool:
        """Whether a query waits for a lane, and not only for its rows."""
        return bool(self.pieces or self.ready)

    def excess_rows(self, rows: int, privileged: bool, max_rows: int) -> int:
        """Returns by how many rows adding `rows` would exceed the limit; 0 or less if they fit.

        Each class, privileged or not, may hold `max_rows`; RESERVED_SHARE of that is reserved for the other
        one.
        """
        class_rows = self.privileged_rows if privileged else self.rows - self.privileged_rows
        return rows + max(class_rows - max_rows, self.rows - int((1 + RESERVED_SHARE) * max_rows))

    def push(self, query: Query, first: int, rows: int) -> None:
        """Adds rows [first, first + rows) of a query."""
        self._number += 1
        order_s = query.arrival_s if self.fifo else query.deadline_s
        piece = Piece(query.priority or LOWEST, order_s, self._number, query, first, rows)
        pieces = self.pieces
        if pieces and piece < pieces[-1]:
            insort(pieces, piece)
        else:
            pieces.append(piece)
        self.rows += rows
        if query.priority:
            self.privileged_rows += rows
        if query.deadline_s < self.earliest_s:
            self.earliest_s = query.deadline_s

    def hold(self, query: Query, until_s: float) -> None:
        """Holds a query that was pushed and taken, while its rows are read, until until_s at the latest."""
        self.held[query] = until_s
        self._count(query, query.rows)
        if until_s < self.release_s:
            self.release_s = until_s

    def take(self, query: Query) -> None:
        """Removes the piece of a query of which no rows were dispatched."""
        pieces = self.pieces
        at = next(i for i in range(len(pieces) - 1, -1, -1) if pieces[i].query is query)
        del pieces[at]
        self._count(query, -query.rows)

    def mark_ready(self, query: Query, until_s: float) -> None:
        """Records that a query's rows were read; if it is held, it is queued by until_s at the latest."""
        if query in self.held:
            self.held[query] = min(self.held[query], until_s)
            self.release_s = min(self.release_s, self.held[query])
            self.ready.append(query)

    def release_ready(self, rows: int) -> list[Query]:
        """Releases and returns ready queries with about `rows` rows, at least one if there are any."""
        released: list[Query] = []
        while self.ready and rows > 0:
            query = self.ready.popleft()
            if self.release(query):
                released.append(query)
                rows -= query.rows
        return released

    def release(self, query: Query) -> bool:
        """Removes a held query, which the caller pushes. Returns False if it is not held, or settled."""
        if self.held.pop(query, None) is None or query.settled:
            return False
        self._count(query, -query.rows)
        return True

    def release_due(self, now_s: float) -> list[Query]:
        """Releases and returns the queries that cannot be held any longer."""
        due = [query for query, until_s in self.held.items() if until_s <= now_s]
        released = [query for query in due if self.release(query)]
        self.release_s = min(self.held.values(), default=float("inf"))
        return released

    def _count(self, query: Query, rows: int) -> None:
        self.rows += rows
        if query.priority:
            self.privileged_rows += rows

    def trim(self) -> list[Piece]:
        """Removes settled queries from both ends and returns the remaining pieces."""
        pieces = self.pieces
        while pieces and pieces[0].query.settled:
            self.discount(pieces[0].query)
            del pieces[0]
        while pieces and pieces[-1].query.settled:
            self.discount(pieces[-1].query)
            del pieces[-1]
        return pieces

    def settle(self, query: Query) -> None:
        """Settles a query and stops counting its waiting rows."""
        query.settled = query.recorded = True
        if query.dispatched_rows < query.rows:
            self.discount(query)

    def discount(self, query: Query) -> None:
        """Stops counting the waiting rows of a settled query, and holding it."""
        self.held.pop(query, None)
        rows = query.rows - query.dispatched_rows
        self.rows -= rows
        if query.priority:
            self.privileged_rows -= rows
        query.dispatched_rows = query.rows

    def clear(self) -> None:
        """Removes all pieces but keeps held queries."""
        self.pieces.clear()
        self.rows = self.privileged_rows = 0
        for query in self.held:
            if not query.settled:
                self._count(query, query.rows)

    def sweep(self, now_s: float, min_latency_s: float) -> list[Query]:
        """Removes, settles and returns queries whose deadline is at most `min_latency_s` away."""
        expired: list[Query] = []
        kept: list[Piece] = []
        earliest_s = float("inf")
        for piece in self.pieces:
            query = piece.query
            if query.settled:
                self.discount(query)
            elif query.deadline_s - min_latency_s <= now_s:
                query.settled = query.recorded = True
                self.discount(query)
                expired.append(query)
            else:
                kept.append(piece)
                if query.deadline_s < earliest_s:
                    earliest_s = query.deadline_s
        self.pieces[:] = kept
        for query in tuple(self.held):
            if not query.settled and query.deadline_s - min_latency_s <= now_s:
                query.settled = query.recorded = True
                expired.append(query)
            if query.settled:
                self.discount(query)
            elif query.deadline_s < earliest_s:
                earliest_s = query.deadline_s
        self.earliest_s = earliest_s
        return expired

    def unsettled(self) -> Iterator[Piece]:
        """Iterates over the pieces of queries that still need an answer."""
        return (piece for piece in self.pieces if not piece.query.settled)
