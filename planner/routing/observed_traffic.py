"""Observed traffic: arrival rates, query sizes and budgets. Fed by every arrival, summarized on ticks.

Queries that could not meet their budgets at any load are work of the front only, and count only in
`queries_s`: a client could otherwise make demand, sizes and the usual budget what it likes, and lose nothing
but its own rejected queries. Those that are executed nevertheless while nothing waits (admission/attempt.py)
also count in `demand_rows_s`, which moves no price and no answer. Sizes and budgets are those of the last
seconds: where other queries are few, those of one client would otherwise count long after it has left.

Of a query that has more time than usual only a share is urgent, the usual budget over its own: the queue is
in order of deadline, so within the time of a usual query no more of its rows need be executed. Judged by all
its rows, a client of large queries with ample time would cost all others their quality.
"""

from __future__ import annotations

from collections import deque
from math import exp

import numpy as np

KEPT = 512
SIZES_MEMORY_S, LEAST_KEPT = 5.0, 8
"""Sizes and budgets older than SIZES_MEMORY_S are forgotten, except for the last LEAST_KEPT."""
LONG_MEMORY_S = 1.0
OUTLIER = 100.0
"""A change between two ticks counts for at most this factor of the variance known so far."""
RATE_MEMORY_S = 0.3
"""Time constant of the rates: after it, two thirds of a step in load are known."""
FIRST_ROWS, FIRST_BUDGET_S = 23.0, 0.1


class ObservedTraffic:
    """Statistics of all arrivals, rejected ones included.

    queries_s: rate of all queries. new_queries: number of all since the last tick. demand_rows_s: rate of the
    rows of queries that are executed, or would be if nothing else waited. All others are of possible
    queries: possible_s, rows_s: rates of queries and of their rows. high_rows_s: the higher of rows_s and a
    rate with longer memory, so that a random lull does not look like less load. budget_s: median budget.
    mean_rows, mean_square: of query sizes. urgent_s: rate of urgent rows. variance_s: variance of arriving
    urgent rows per second, at least that of Poisson arrivals. urgent_mean, urgent_square: mean and mean
    square of a query's urgent rows.
    """

    __slots__ = (
        "_budgets", "_first_s", "_last_s", "_last_urgent", "_long_rows_s", "_new_demand", "_new_possible",
        "_new_rows", "_new_urgent", "_seen", "_seen_by", "_sizes", "_ticks", "_varies", "budget_s",
        "demand_rows_s", "high_rows_s",
        "mean_rows", "mean_square", "new_queries", "possible_s", "queries_s", "rows_s", "urgent_mean",
        "urgent_s", "urgent_square", "variance_s",
    )  # fmt: skip

    def __init__(self, now_s: float) -> None:
        self._sizes: deque[int] = deque(maxlen=KEPT)
        self._budgets: deque[float] = deque(maxlen=KEPT)
        self._first_s = self._last_s = now_s
        self._seen_by: deque[tuple[float, int]] = deque()
        """Possible queries seen so far, by the time of a tick."""
        self._seen = 0
        self.new_queries = self._new_possible = self._new_rows = self._new_demand = 0
        self._new_urgent = 0.0
        self.queries_s = self.possible_s = self.demand_rows_s = 0.0
        self.rows_s = self.urgent_s = 0.0
        self.high_rows_s = 0.0
        self.variance_s = 0.0
        self._long_rows_s = 0.0
        self._last_urgent = 0.0
        self._varies = 0.0
        self._ticks = 0
        self.mean_rows = self.urgent_mean = FIRST_ROWS
        self.urgent_square = self.mean_square = FIRST_ROWS**2
        self.budget_s = FIRST_BUDGET_S

    @property
    def has_queries(self) -> bool:
        """Whether any possible query has arrived; before that, sizes and budget are defaults."""
        return bool(self._sizes)

    def record_arrival(
        self, rows: int, budget_s: float, possible: bool = True, attempted: bool = True
    ) -> None:
        """Counts a query.

        possible: whether it could meet its budget at any load. attempted: whether it is executed at rest.
        """
        self.new_queries += 1
        if attempted:
            self._new_demand += rows
        if not possible:
            return
        self._new_possible += 1
        self._new_rows += rows
        self._new_urgent += rows if budget_s <= self.budget_s else rows * self.budget_s / budget_s
        self._sizes.append(rows)
        self._budgets.append(budget_s)

    def tick(self, now_s: float) -> None:
        """Updates the statistics by the arrivals since the last tick."""
        passed = now_s - self._last_s
        if passed <= 0:
            return
        # Before one time constant has passed, take the plain mean.
        weight = max(1 - exp(-passed / RATE_MEMORY_S), passed / (now_s - self._first_s))
        self.queries_s += weight * (self.new_queries / passed - self.queries_s)
        self.possible_s += weight * (self._new_possible / passed - self.possible_s)
        self.rows_s += weight * (self._new_rows / passed - self.rows_s)
        self.demand_rows_s += weight * (self._new_demand / passed - self.demand_rows_s)
        self.urgent_s += weight * (self._new_urgent / passed - self.urgent_s)
        weight = max(1 - exp(-passed / LONG_MEMORY_S), passed / (now_s - self._first_s))
        self._long_rows_s += weight * (self._new_rows / passed - self._long_rows_s)
        self.high_rows_s = max(self.rows_s, self._long_rows_s)
        # Allan variance, half the squared difference of consecutive counts: excludes slow drift. Clipped, as
        # a single large step says little, and bursts recur.
        poisson = self.possible_s * self.urgent_square
        change = self._new_urgent - self._last_urgent * passed if self._ticks else 0.0
        varies = min(change * change / 2 / passed, OUTLIER * max(self._varies, poisson))
        self._varies += (1 - exp(-passed / LONG_MEMORY_S)) * (varies - self._varies)
        self._last_urgent = self._new_urgent / passed
        self._ticks += 1
        self._seen += self._new_possible
        self.new_queries = self._new_possible = self._new_rows = self._new_demand = 0
        self._new_urgent = 0.0
        self._last_s = now_s
        self._forget(now_s)
        if self._sizes:
            sizes = np.fromiter(self._sizes, np.float64)
            budgets = np.fromiter(self._budgets, np.float64)
            self.mean_rows = float(sizes.mean())
            self.mean_square = float((sizes * sizes).mean())
            self.budget_s = float(np.median(budgets))
            urgent = sizes * np.minimum(1.0, self.budget_s / budgets)
            self.urgent_mean = float(urgent.mean())
            self.urgent_square = float((urgent * urgent).mean())
        self.variance_s = max(self._varies, self.possible_s * self.urgent_square)

    def _forget(self, now_s: float) -> None:
        """Forgets sizes and budgets of more than SIZES_MEMORY_S ago."""
        seen_by = self._seen_by
        seen_by.append((now_s, self._seen))
        while len(seen_by) > 1 and seen_by[1][0] <= now_s - SIZES_MEMORY_S:
            seen_by.popleft()
        at_s, seen = seen_by[0]
        kept = max(LEAST_KEPT, self._seen - seen) if at_s <= now_s - SIZES_MEMORY_S else KEPT
        while len(self._sizes) > kept:
            self._sizes.popleft()
            self._budgets.popleft()

    def size_quantiles(self, at: tuple[float, ...]) -> tuple[float, ...]:
        """Query sizes at these quantiles; empty before the first query."""
        return tuple(np.quantile(self._sizes, at).tolist()) if self._sizes else ()
