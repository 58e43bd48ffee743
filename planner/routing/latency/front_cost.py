"""What the front spends on a query, beside the lane: reading before it is offered, answering after.

The plan's figures come in first, then what the owner's loop really spent; a query's seconds go out. The plan
knows only the sum, half of which is taken to be the answer. Past capacity most of what is read is refused in
a fraction of an answer's time: what an answer takes is measured apart, or batches would be made too large
for the answers that come after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.plan import Routing

LEAST_QUERIES = 50
"""Fewer between two ticks say more about the ticks than about queries."""
WEIGHT = 0.3
LEAST_S = 5e-6
MOST_BUSY = 0.8


@dataclass(frozen=True, slots=True)
class Spent:
    """By the owner's loop since the last tick, beside lanes: in all, and of that on so many answers."""

    all_s: float
    answering_s: float
    answers: int


class Front:
    """query_s, row_s: reading and answering a query, and each of its rows. answer_s, answer_row_s: answering.

    read_s: reading, and refusing if it comes to that, the mean of all that come.

    busy: share of the loop's time that goes to reading.
    """

    __slots__ = ("answer_row_s", "answer_s", "busy", "query_s", "read_s", "row_s")

    def __init__(self, routing: Routing) -> None:
        self.row_s = routing.row_s
        self.answer_row_s = routing.row_s / 2
        self.busy = 0.0
        self.query_s = routing.query_s
        self.read_s = self.answer_s = routing.query_s / 2

    def observe(self, spent: Spent, queries: int, mean_rows: float) -> None:
        """So many queries came, and were taken or refused."""
        rows_s = self.answer_row_s * mean_rows
        if spent.answers >= LEAST_QUERIES:
            self.answer_s = _towards(self.answer_s, spent.answering_s / spent.answers - rows_s)
        if queries >= LEAST_QUERIES:
            self.read_s = _towards(self.read_s, (spent.all_s - spent.answering_s) / queries - rows_s)
        self.query_s = self.read_s + self.answer_s

    def load(self, queries_s: float, mean_rows: float) -> None:
        """Queries/s that come."""
        self.busy = min(MOST_BUSY, queries_s * (self.read_s + self.answer_row_s * mean_rows))


def _towards(known_s: float, seen_s: float) -> float:
    seen_s = max(LEAST_S, seen_s)
    return known_s + WEIGHT * (seen_s - known_s) if known_s else seen_s
