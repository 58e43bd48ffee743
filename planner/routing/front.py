"""What the front spends on a query, beside the lane: parsing before it is offered, answering after.

The plan's figures come in first, then what the owner's loop really spent; a query's seconds go out. Half of
them are taken to be parsing, which is over when the router first sees a query, and half the answer.
"""

from __future__ import annotations

from planner.plan import Routing

LEAST_QUERIES = 50
"""Fewer between two ticks say more about the ticks than about queries."""
WEIGHT = 0.3
LEAST_S = 1e-5
MOST_BUSY = 0.8


class Front:
    """query_s, row_s: parsing and answering a query, and each of its rows. answer_s, answer_row_s: answering.

    busy: share of the loop's time that goes to parsing, and to answering those who are refused.
    """

    __slots__ = ("answer_row_s", "answer_s", "busy", "query_s", "row_s")

    def __init__(self, routing: Routing) -> None:
        self.row_s = routing.row_s
        self.answer_row_s = routing.row_s / 2
        self.busy = 0.0
        self._cost(routing.query_s)

    def observe(self, spent_s: float, queries: int, mean_rows: float) -> None:
        """The loop spent so much beside lanes, on so many queries, taken or refused."""
        if queries >= LEAST_QUERIES:
            each_s = max(LEAST_S, spent_s / queries - self.row_s * mean_rows)
            self._cost(self.query_s + WEIGHT * (each_s - self.query_s) if self.query_s else each_s)

    def load(self, queries_s: float, refused_s: float, mean_rows: float) -> None:
        """Queries/s that come, and those of them that are refused."""
        half_s = self.answer_s + self.answer_row_s * mean_rows
        self.busy = min(MOST_BUSY, queries_s * half_s + refused_s * self.answer_s)

    def _cost(self, query_s: float) -> None:
        self.query_s = query_s
        self.answer_s = query_s / 2
