"""The front's cost: what the event loop spends on a query besides lanes, reading it and writing its answer.

Starts from the plan's figures and follows the time that the loop really spends. The plan knows only the sum;
half of it is taken for the answer. Answers are measured apart, because past capacity most queries are
rejected in a fraction of an answer's time, and by the mean of both, batches would be too large for their
answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.plan import Routing

MIN_QUERIES = 50
"""Fewer between two ticks are too noisy to measure by."""
WEIGHT = 0.3
MIN_S = 5e-6
MAX_READ_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class LoopTime:
    """Processor seconds of the event loop since the last tick, without lanes; answering_s: part of all_s."""

    all_s: float
    answering_s: float
    answers: int


class FrontCost:
    """Seconds that the front spends, in the mean: backlogs are sums over many queries, and a single answer's
    time, microseconds, is little of any budget.

    query_s, row_s: on reading and answering a query, and on each of its rows. answer_s, answer_row_s: on the
    answer alone. read_s: on reading a query, and rejecting it if need be, the mean of all arrivals.
    read_share: share of the loop's time spent on reading.
    """

    __slots__ = ("answer_row_s", "answer_s", "query_s", "read_s", "read_share", "row_s")

    def __init__(self, routing: Routing) -> None:
        self.row_s = routing.row_s
        self.answer_row_s = routing.row_s / 2
        self.read_share = 0.0
        self.query_s = routing.query_s
        self.read_s = self.answer_s = routing.query_s / 2

    def observe(self, loop_time: LoopTime, queries: int, mean_rows: float) -> None:
        """Updates the cost by the loop's time since the last tick, in which `queries` queries arrived."""
        rows_s = self.answer_row_s * mean_rows
        if loop_time.answers >= MIN_QUERIES:
            self.answer_s = _ewma(self.answer_s, loop_time.answering_s / loop_time.answers - rows_s)
        if queries >= MIN_QUERIES:
            self.read_s = _ewma(self.read_s, (loop_time.all_s - loop_time.answering_s) / queries - rows_s)
        self.query_s = self.read_s + self.answer_s

    def update_read_share(self, queries_s: float, mean_rows: float) -> None:
        """queries_s: arrival rate."""
        self.read_share = min(MAX_READ_SHARE, queries_s * (self.read_s + self.answer_row_s * mean_rows))


def _ewma(known_s: float, observed_s: float) -> float:
    observed_s = max(MIN_S, observed_s)
    return known_s + WEIGHT * (observed_s - known_s) if known_s else observed_s
