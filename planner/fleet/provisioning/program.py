"""The fleet's optimization program: nodes of each configuration by hour, and queries that their paths answer.

Variables: nodes[configuration, hour] (whole numbers at the end), daily[type], answered[configuration,
path, class, hour] and unserved[model, class, hour], in queries per second. It minimizes dollars: the cost of
nodes, minus the worth of information, plus a penalty on unserved rows that is above the cost of any node that
could answer them. Hours are coupled by types rented daily and by qualities required over the day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from polyrec.models.schema.batch import F64
from polyrec.planner.fleet.provisioning.capability import FleetProblem, Runnable
from polyrec.planner.fleet.provisioning.configuration import Paths
from polyrec.planner.sparse_rows import SparseRows

HOUR_S = 3600.0
PENALTY = 10.0
"""Cost of an unserved row, as a multiple of the cost of a row on the dearest path of any node."""
FAIRNESS = 10.0
"""For fixed nodes: weight of the worst model's unserved share, relative to that of all rows together."""
NEGLIGIBLE = 1e-3
"""Share of an hour's rows above which one more node is rented instead of leaving them unserved."""
GAP = 1e-4
TIME_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """Paths that run together on one node. offer: index of the node's type."""

    offer: int
    paths: Paths


@dataclass(frozen=True, slots=True)
class Solved:
    """A solution in dollars for all hours.

    nodes: [configurations, hours]. answered: (configuration, path, class, hour, queries per second).
    unserved: by model, [classes, hours]. query_price: by model, [classes, hours], dollars per hour for one
    more query per second; row_quality_price: by model, [hours], for a unit of quality above the required
    mean; node_price: by type, [hours], the cost of a node including the prices of `most` and of daily rent.
    Prices are of the linear relaxation; a mixed-integer solution has none. bound: lower bound of the cost.
    """

    dollars: float
    bound: float
    nodes: F64
    answered: tuple[tuple[int, int, int, int, float], ...]
    unserved: tuple[F64, ...]
    query_price: tuple[F64, ...] = ()
    row_quality_price: tuple[F64, ...] = ()
    node_price: tuple[F64, ...] = ()


class FleetProgram:
    """The program over some configurations.

    fixed: given nodes [configurations, hours], so that only the load is divided. asked: whether the mean
    qualities that models require are constraints.
    """

    def __init__(
        self,
        problem: FleetProblem,
        configurations: Sequence[Configuration],
        fixed: F64 | None = None,
        asked: bool = True,
    ) -> None:
        self.problem = problem
        self.configurations = tuple(configurations)
        self.fixed = fixed
        self._cost: list[float] = []
        self._upper: list[float] = []
        self._le, self._eq = SparseRows(), SparseRows()
        hours, n = problem.hours, len(self.configurations)
        prices = [problem.offers[k.offer] for k in self.configurations]
        for offer in prices:
            for _ in range(hours):
                self._variable(0.0 if offer.daily or fixed is not None else offer.price)
        self.whole = n * hours
        self._daily: dict[int, int] = {}
        self._max_rows: dict[tuple[int, int], int] = {}
        self._daily_rows: dict[tuple[int, int], int] = {}
        if fixed is None:
            self._limit_nodes()
        self._answered: list[tuple[int, int, int, int]] = []
        self._answered_from = len(self._cost)
        self._demand_rows: list[NDArray[np.int64]] = []
        self._quality_rows: dict[tuple[int, int], int] = {}
        self._unserved_from: list[int] = []
        # worth that paths lose compared with the best one, so that the solver's relative gap is of what can
        # be saved, not of the worth of all answers
        self._best_worth = _best_worth(problem)
        self._constant = -sum(
            float(worth @ demand.queries.sum(axis=1))
            for worth, demand in zip(self._best_worth, problem.demands, strict=True)
        )
        self._load(asked)

    def _variable(self, cost: float, upper: float = np.inf) -> int:
        self._cost.append(cost)
        self._upper.append(upper)
        return len(self._cost) - 1

    def _limit_nodes(self) -> None:
        """Adds the limits on the nodes of each type, and the nodes that are paid for by the day."""
        hours = self.problem.hours
        for t, offer in enumerate(self.problem.offers):
            if offer.daily:
                upper = np.inf if offer.most is None else float(offer.most)
                self._daily[t] = self._variable(offer.price * hours, upper)
                for h, row in enumerate(self._node_rows(t, 0.0)):
                    self._le.put(row, self._daily[t], -1.0)
                    self._daily_rows[t, h] = row
            elif offer.most is not None:
                for h, row in enumerate(self._node_rows(t, float(offer.most))):
                    self._max_rows[t, h] = row

    def _node_rows(self, t: int, limit: float) -> list[int]:
        """Adds a constraint per hour on the number of nodes of a type; returns their rows."""
        hours = self.problem.hours
        rows = [self._le.row(limit) for _ in range(hours)]
        for k, one in enumerate(self.configurations):
            if one.offer == t:
                for h, row in enumerate(rows):
                    self._le.put(row, k * hours + h, 1.0)
        return rows

    def _load(self, asked: bool) -> None:
        penalties = unserved_prices(self.problem, whole=self.fixed is None)
        self._demand(asked)
        self._time()
        self._unserved(penalties)
        if self.fixed is not None:
            self._divide_fairly(penalties)

    def _demand(self, asked: bool) -> None:
        """Adds the constraints for the queries to answer and for the required quality."""
        for m, demand in enumerate(self.problem.demands):
            rows = np.array(
                [[self._eq.row(float(q)) for q in by_hour] for by_hour in demand.queries], np.int64
            )
            self._demand_rows.append(rows)
            if asked and demand.quality is not None:
                over_day = self._le.row(0.0) if not demand.hourly else None
                for h in range(self.problem.hours):
                    self._quality_rows[m, h] = self._le.row(0.0) if over_day is None else over_day

    def _time(self) -> None:
        """Adds the constraints on device time, and the queries that paths answer within it."""
        hours = self.problem.hours
        for k, one in enumerate(self.configurations):
            offer = self.problem.offers[one.offer]
            for h in range(hours):
                time = [self._le.row(0.0) for _ in offer.resources]
                for row, capacity in zip(time, offer.capacity, strict=True):
                    self._le.put(row, k * hours + h, -float(capacity))
                for i in sorted(one.paths):
                    self._share(k, i, offer.runnables[i], h, time)

    def _unserved(self, penalties: list[F64]) -> None:
        """Adds the unanswered queries, with a penalty by model and hour."""
        for m, demand in enumerate(self.problem.demands):
            self._unserved_from.append(len(self._cost))
            for c, rows_of in enumerate(demand.rows):
                for h in range(self.problem.hours):
                    column = self._variable(float(penalties[m][h] * rows_of + self._best_worth[m][c]))
                    self._eq.put(int(self._demand_rows[m][c, h]), column, 1.0)

    def _divide_fairly(self, penalties: list[F64]) -> None:
        """Minimizes the largest share of unserved rows of any model, in each hour."""
        for h in range(self.problem.hours):
            asked = [float(d.rows @ d.queries[:, h]) for d in self.problem.demands]
            cost = FAIRNESS * sum(float(p[h]) * rows for p, rows in zip(penalties, asked, strict=True))
            share = self._variable(cost)
            for m, demand in enumerate(self.problem.demands):
                if asked[m] > 0:
                    row = self._le.row(0.0)
                    self._le.put(row, share, -1.0)
                    for c, rows_of in enumerate(demand.rows.tolist()):
                        column = self._unserved_from[m] + c * self.problem.hours + h
                        self._le.put(row, column, rows_of / asked[m])

    def _share(self, k: int, i: int, r: Runnable, h: int, time: list[int]) -> None:
        """Adds the queries of each class that a path answers in one hour."""
        demand = self.problem.demands[r.model]
        for c in np.flatnonzero(np.isfinite(r.usage).all(axis=0) & (demand.queries[:, h] > 0)).tolist():
            worth = hourly_worth(demand.weight, r.value) * float(demand.rows[c])
            column = self._variable(float(self._best_worth[r.model][c]) - worth)
            self._answered.append((k, i, c, h))
            self._eq.put(int(self._demand_rows[r.model][c, h]), column, 1.0)
            for row, seconds in zip(time, r.usage[:, c].tolist(), strict=True):
                if seconds:
                    self._le.put(row, column, seconds)
            if (r.model, h) in self._quality_rows:
                assert demand.quality is not None
                above = (r.value - demand.quality) * float(demand.rows[c])
                self._le.put(self._quality_rows[r.model, h], column, -above)

    def _bounds(self) -> tuple[F64, F64]:
        lower, upper = np.zeros(len(self._cost)), np.array(self._upper)
        if self.fixed is not None:
            lower[: self.whole] = upper[: self.whole] = self.fixed.ravel()
        return lower, upper

    def relax(self) -> Solved:
        """Solves the linear relaxation, with prices."""
        lower, upper = self._bounds()
        n = len(self._cost)
        result = linprog(
            self._cost,
            A_ub=self._le.matrix(n),
            b_ub=self._le.limits,
            A_eq=self._eq.matrix(n),
            b_eq=self._eq.limits,
            bounds=np.stack((lower, upper), axis=1),
            method="highs",
        )
        if result.x is None:
            raise RuntimeError(f"the fleet's linear program was not solved: {result.message}")
        below, equal = result.ineqlin.marginals, result.eqlin.marginals
        node_price = []
        for t, offer in enumerate(self.problem.offers):
            price = np.full(self.problem.hours, 0.0 if offer.daily else offer.price)
            for (own, h), row in (*self._max_rows.items(), *self._daily_rows.items()):
                if own == t:
                    price[h] -= below[row]
            node_price.append(price)
        return self._solved(
            result.x,
            float(result.fun),
            float(result.fun),
            tuple(
                equal[rows] - worth[:, None]
                for rows, worth in zip(self._demand_rows, self._best_worth, strict=True)
            ),
            tuple(
                np.array(
                    [
                        -below[self._quality_rows[m, h]] if (m, h) in self._quality_rows else 0.0
                        for h in range(self.problem.hours)
                    ]
                )
                for m in range(len(self.problem.demands))
            ),
            tuple(node_price),
        )

    def solve(self, time_limit_s: float = TIME_LIMIT_S, gap: float = GAP) -> Solved | None:
        """Solves for whole nodes; returns None if the solver found no solution within the time limit."""
        lower, upper = self._bounds()
        n = len(self._cost)
        result = milp(
            np.array(self._cost),
            integrality=np.arange(n) < self.whole,
            bounds=Bounds(lower, upper),
            constraints=[
                LinearConstraint(self._le.matrix(n), ub=np.array(self._le.limits)),
                LinearConstraint(self._eq.matrix(n), self._eq.limits, self._eq.limits),
            ],
            options={"mip_rel_gap": gap, "time_limit": time_limit_s},
        )
        if result.x is None:
            return None
        bound = float(result.fun) if result.mip_dual_bound is None else float(result.mip_dual_bound)
        result.x[: self.whole] = np.rint(result.x[: self.whole])
        return self._solved(result.x, float(result.fun), bound)

    def _solved(
        self,
        x: F64,
        dollars: float,
        bound: float,
        query_price: tuple[F64, ...] = (),
        row_quality_price: tuple[F64, ...] = (),
        node_price: tuple[F64, ...] = (),
    ) -> Solved:
        shape = (len(self.configurations), self.problem.hours)
        rates = x[self._answered_from : self._answered_from + len(self._answered)].tolist()
        unserved = []
        for first, demand in zip(self._unserved_from, self.problem.demands, strict=True):
            unserved.append(x[first : first + demand.queries.size].reshape(demand.queries.shape))
        return Solved(
            dollars + self._constant,
            bound + self._constant,
            x[: self.whole].reshape(shape),
            tuple((*at, rate) for at, rate in zip(self._answered, rates, strict=True) if rate > 0),
            tuple(unserved),
            query_price,
            row_quality_price,
            node_price,
        )


def hourly_worth(weight: float, value: float) -> float:
    """Returns the dollars per hour of one row per second of a value. weight: dollars per million units."""
    return weight * 1e-6 * value * HOUR_S


def _best_worth(problem: FleetProblem) -> list[F64]:
    """Returns what a query per second is worth on its model's best path, dollars per hour, [classes]."""
    best = [0.0] * len(problem.demands)
    for r in (r for offer in problem.offers for r in offer.runnables):
        best[r.model] = max(best[r.model], hourly_worth(problem.demands[r.model].weight, r.value))
    return [worth * demand.rows for worth, demand in zip(best, problem.demands, strict=True)]


def unserved_prices(problem: FleetProblem, whole: bool) -> list[F64]:
    """Returns the dollars per hour of one unserved row per second, by model, [hours].

    whole: whether leaving a share of NEGLIGIBLE of an hour's rows unserved must cost more than a whole node.
    """
    dearest = 0.0
    for offer in problem.offers:
        for r in offer.runnables:
            demand = problem.demands[r.model]
            nodes = (r.usage / offer.capacity[:, None]).max(axis=0) / demand.rows
            usable = nodes[np.isfinite(nodes)]
            if usable.size:
                dearest = max(dearest, max(offer.price, 1e-3) * float(usable.max()))
            dearest = max(dearest, abs(hourly_worth(demand.weight, r.value)))
    node = max((offer.price for offer in problem.offers if offer.runnables), default=0.0)
    found = []
    for demand in problem.demands:
        rows = (demand.rows[:, None] * demand.queries).sum(axis=0)
        min_price = node / np.maximum(rows * NEGLIGIBLE, 1e-6) if whole else np.zeros(problem.hours)
        found.append(np.maximum(PENALTY * dearest, np.where(rows > 0, min_price, 0.0)))
    return found
