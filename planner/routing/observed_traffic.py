"""Measures the traffic: arrival rates, query sizes and budgets. Every arrival is recorded; ticks summarize.

Statistics must not be open to manipulation by a single client. A query whose budget could not be met at any
load therefore counts only in `queries_s`, as work for the front. Otherwise a client could shift demand, sizes
and the usual budget at will, at the price of its own queries being rejected. If such a query executes anyway
because nothing waits (admission/attempt.py), it also counts in `demand_rows_s`, which affects neither prices
nor answers. Sizes and budgets cover the last seconds only, so that a client which has left does not count for
long.

If a query has a larger budget than usual, only a share of its rows is urgent: the usual budget over its own.
The queue is ordered by deadline, so no more of its rows need to execute within the usual budget. If all its
rows counted, a client with large, patient queries would degrade the answers to everyone else.
"""

from __future__ import annotations

from collections import deque
from math import exp

import numpy as np

KEPT = 512
SIZES_MEMORY_S, MIN_KEPT = 5.0, 8
"""Sizes and budgets older than SIZES_MEMORY_S are forgotten, except for the last MIN_KEPT."""
LONG_MEMORY_S = 1.0
OUTLIER = 100.0
"""A change between two ticks counts for at most this factor times the known variance."""
RATE_MEMORY_S = 0.3
"""Time constant of the rates, after which they reflect two thirds of a step in load."""
SIZE_GROUPS = 8
FIRST_ROWS, FIRST_BUDGET_S = 23.0, 0.1


class ObservedTraffic:
    """Statistics of all arrivals, including rejected ones.

    queries_s, new_queries: rate of all queries, and their number since the last tick.
    demand_rows_s: rate of rows of queries that execute, or would if nothing else waited.

    The following only cover possible queries, whose budgets could be met on an idle server:

    possible_s, rows_s: rates of queries and of their rows.
    high_rows_s: the higher of rows_s and a rate with longer memory, so that a random lull does not look like
        less load.
    budget_s: median budget.
    mean_rows, mean_square: mean and mean square of rows per query.
    size_groups: mean rows per query in each of SIZE_GROUPS groups of queries by size, equally many in each.
    urgent_s, urgent_mean, urgent_square: rate of urgent rows, and mean and mean square per query.
    variance_s: variance of arriving urgent rows per second, at least that of Poisson arrivals.
    """

    __slots__ = (
        "_budgets", "_first_s", "_last_s", "_last_urgent", "_long_rows_s", "_new_demand", "_new_possible",
        "_new_rows", "_new_urgent", "_seen", "_seen_by", "_sizes", "_ticks", "_varies", "budget_s",
        "demand_rows_s", "high_rows_s", "mean_rows", "mean_square", "new_queries", "possible_s",
        "queries_s", "rows_s", "size_groups", "urgent_mean", "urgent_s", "urgent_square", "variance_s",
    )  # fmt: skip

    def __init__(self, now_s: float) -> None:
        self._sizes: deque[int] = deque(maxlen=KEPT)
        self._budgets: deque[float] = deque(maxlen=KEPT)
        self._first_s = self._last_s = now_s
        self._seen_by: deque[tuple[float, int]] = deque()
        """Ticks with the number of possible queries seen until then."""
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
        self.size_groups = [round(FIRST_ROWS)]
        self.budget_s = FIRST_BUDGET_S

    @property
    def has_queries(self) -> bool:
        """Whether any possible query has arrived; before that, sizes and budget are defaults."""
        return bool(self._sizes)

    def record_arrival(
        self, rows: int, budget_s: float, possible: bool = True, attempted: bool = True
    ) -> None:
        """Counts a query.

        possible: whether its budget could be met on an idle server.
        attempted: whether it would be executed on an idle server.
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
        """Updates the statistics from the arrivals since the last tick."""
        passed = now_s - self._last_s
        if passed <= 0:
            return
        # before one time constant has passed, use the plain mean
        weight = max(1 - exp(-passed / RATE_MEMORY_S), passed / (now_s - self._first_s))
        self.queries_s += weight * (self.new_queries / passed - self.queries_s)
        self.possible_s += weight * (self._new_possible / passed - self.possible_s)
        self.rows_s += weight * (self._new_rows / passed - self.rows_s)
        self.demand_rows_s += weight * (self._new_demand / passed - self.demand_rows_s)
        self.urgent_s += weight * (self._new_urgent / passed - self.urgent_s)
        weight = max(1 - exp(-passed / LONG_MEMORY_S), passed / (now_s - self._first_s))
        self._long_rows_s += weight * (self._new_rows / passed - self._long_rows_s)
        self.high_rows_s = max(self.rows_s, self._long_rows_s)
        # Allan variance (half the squared difference of consecutive counts), which excludes slow drift;
        # clipped, as a single large step is weak evidence, and bursts recur
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
            groups = np.array_split(np.sort(sizes), min(SIZE_GROUPS, sizes.size))
            self.size_groups = [max(1, round(group.mean())) for group in groups]
            self.mean_square = float((sizes * sizes).mean())
            self.budget_s = float(np.median(budgets))
            urgent = sizes * np.minimum(1.0, self.budget_s / budgets)
            self.urgent_mean = float(urgent.mean())
            self.urgent_square = float((urgent * urgent).mean())
        self.variance_s = max(self._varies, self.possible_s * self.urgent_square)

    def _forget(self, now_s: float) -> None:
        """Forgets sizes and budgets older than SIZES_MEMORY_S."""
        seen_by = self._seen_by
        seen_by.append((now_s, self._seen))
        while len(seen_by) > 1 and seen_by[1][0] <= now_s - SIZES_MEMORY_S:
            seen_by.popleft()
        at_s, seen = seen_by[0]
        kept = max(MIN_KEPT, self._seen - seen) if at_s <= now_s - SIZES_MEMORY_S else KEPT
        while len(self._sizes) > kept:
            self._sizes.popleft()
            self._budgets.popleft()

    def size_quantiles(self, at: tuple[float, ...]) -> tuple[float, ...]:
        """Returns query sizes at these quantiles; empty before the first query."""
        return tuple(np.quantile(self._sizes, at).tolist()) if self._sizes else ()
