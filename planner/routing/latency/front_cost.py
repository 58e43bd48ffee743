"""Tracks the front's cost: CPU time of the event loop for reading a query and writing its answer.

It starts with the plan's figures and then follows the measured CPU time. The plan has only the sum of reading
and answering, of which one half is assumed for each. Answers are measured separately: past capacity most
queries are rejected in a fraction of an answer's time, and a mean over both would make batches too large to
answer in time.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.plan import Routing

MIN_QUERIES = 50
"""Minimum queries between two ticks for a measurement; fewer are too noisy."""
WEIGHT = 0.3
MIN_S = 5e-6
MAX_READ_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class LoopTime:
    """CPU seconds of the event loop since the last tick, without lanes. answering_s is a part of all_s."""

    all_s: float
    answering_s: float
    answers: int


class FrontCost:
    """Mean seconds that the front spends.

    Means suffice, since backlogs are sums over many queries, and a single answer takes only microseconds.

    query_s, row_s: reading and answering a query, per query and additionally per row.
    answer_s, answer_row_s: answering alone, per query and additionally per row.
    read_s: reading a query, and rejecting it if necessary; mean over all arrivals.
    read_share: share of the loop's time spent on reading.
    """

    __slots__ = ("answer_row_s", "answer_s", "query_s", "read_s", "read_share", "row_s")

    def __init__(self, routing: Routing) -> None:
        self.row_s = routing.row_s
        self.answer_row_s = routing.row_s / 2
        self.read_share = 0.0
        self.query_s = routing.query_s
        self.read_s = self.answer_s = routing.query_s / 2

    def answering_s(self, rows: int) -> float:
        """Returns the seconds of answering a query of `rows` rows."""
        return self.answer_s + self.answer_row_s * rows

    def observe(self, loop_time: LoopTime, queries: int, mean_rows: float) -> None:
        """Updates the costs from the loop's time since the last tick, in which `queries` queries arrived."""
        rows_s = self.answer_row_s * mean_rows
        if loop_time.answers >= MIN_QUERIES:
            self.answer_s = _ewma(self.answer_s, loop_time.answering_s / loop_time.answers - rows_s)
        if queries >= MIN_QUERIES:
            self.read_s = _ewma(self.read_s, (loop_time.all_s - loop_time.answering_s) / queries - rows_s)
        self.query_s = self.read_s + self.answer_s

    def update_read_share(self, queries_s: float, mean_rows: float) -> None:
        """Updates `read_share`. queries_s: arrival rate."""
        self.read_share = min(MAX_READ_SHARE, queries_s * (self.read_s + self.answer_row_s * mean_rows))


def _ewma(known_s: float, observed_s: float) -> float:
    observed_s = max(MIN_S, observed_s)
    return known_s + WEIGHT * (observed_s - known_s) if known_s else observed_s
