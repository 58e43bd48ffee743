"""Solves a problem's mixed-integer program, and the linear program with a fixed deployment, with HiGHS.

The results are the deployed options, their shares of the load, and the dual prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from polyrec.models.errors import PolyrecError
from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.solver.problem import Problem
from polyrec.planner.sparse_rows import SparseRows

GAP = 1e-8
"""Relative. Qualities of paths differ by as little as 1e-4 of themselves."""
TIE = 1e-7
"""Relative bonus for a path not deployed and for idle device time, to break ties between equal plans. Less
than one test row of any realistic data set."""
BEST = 1000.0
"""Objective if every row were worth 1; lifts tie-breaking above the solver's tolerances."""


class PlanImpossible(PolyrecError):
    """Raised if no plan meets the requirements; the message names what is missing and how much of it."""


def weights_of(problem: Problem) -> tuple[F64, F64]:
    """Returns rows per second, weighted by the levels' shares of time, and queries per second.

    Both are float64 [classes, levels].
    """
    queries = problem.queries
    return queries * problem.rows[:, None] * [level.share for level in problem.levels], queries


@dataclass(frozen=True, slots=True)
class Solution:
    """Deployed options, and their relative gap to the best possible."""

    deployed: list[int]
    gap: float


class Program:
    """The constraint matrix and objective.

    Variables in this order: deployed [options]; share [usable option, class, level]; then bytes: rows of a
    group, working memory of a device, and rows of a bundle in slower tiers.

    gain: coefficient of each variable in the objective. worth: the same of the deployed and share variables,
    without tie-breaking. share: candidate -> class it can answer -> variable of its share at the first level.
    time_rows: (device or `front`, level) -> constraint on its time. shares_end: number of deployed and share
    variables. memory_from: first constraint that is not on queries or time.
    """

    def __init__(self, problem: Problem, candidates: list[int]) -> None:
        self.problem = problem
        self.candidates = candidates
        self.weights, self.queries = weights_of(problem)
        self.levels = self.weights.shape[1]
        self.n = len(candidates)
        self._constraints = SparseRows()
        self.time_rows: dict[tuple[str, int], int] = {}
        self.gain: list[float] = [-BEST * TIE] * self.n
        self.worth: list[float] = [0.0] * self.n
        self.share: dict[int, dict[int, int]] = {}
        lasting = np.array([level.share for level in problem.levels])
        self._unit = max(float(self.weights.sum()), 1e-300) / BEST
        for k, i in enumerate(candidates):
            option = problem.options[i]
            value, device = problem.values[option.path], problem.paths[option.path].path.device
            self.share[k] = {}
            for c in np.flatnonzero(np.isfinite(option.cost_s)).tolist():
                self.share[k][c] = len(self.gain)
                time = option.cost_s[c] * self.queries[c] * lasting / problem.lanes[device].count
                worth = value * self.weights[c] / self._unit
                self.worth += worth.tolist()
                self.gain += (worth - BEST * TIE * time).tolist()
        self.shares_end = len(self.gain)
        self._queries_once()
        self._time()
        self.memory_from = len(self._constraints.limits)
        self._linked_and_single()
        self._memory()

    def _variable(self) -> int:
        self.gain.append(0.0)
        return len(self.gain) - 1

    def _queries_once(self) -> None:
        for c in range(len(self.problem.classes)):
            users = [shares[c] for shares in self.share.values() if c in shares]
            for s in range(self.levels):
                row = self._constraints.row(1.0)
                for first in users:
                    self._constraints.put(row, first + s, 1.0)

    def _time(self) -> None:
        """Adds the constraints on the time of devices and of the front."""
        p = self.problem
        for s in range(self.levels):
            self._add_time_rows(s)
            front_row = self.time_rows.get((p.inline or "front", s))
            for k, shares in self.share.items():
                option = self._option(k)
                device_row = self.time_rows.get((p.paths[option.path].path.device, s))
                for c, first in shares.items():
                    device_s, front_s = float(option.cost_s[c]), float(p.front_s[c])
                    if device_row == front_row:
                        spent = [(device_row, device_s + front_s)]
                    else:
                        spent = [(device_row, device_s), (front_row, front_s)]
                    for row, seconds in spent:
                        if row is not None and seconds:
                            self._constraints.put(row, first + s, seconds * float(self.queries[c, s]))

    def _add_time_rows(self, s: int) -> None:
        """Adds a constraint on each limited device at a level, and on the front unless a lane runs in it."""
        p = self.problem
        if p.front_capacity is not None and not p.inline:
            self.time_rows["front", s] = self._constraints.row(p.front_capacity)
        for device, capacity in p.capacity.items():
            if capacity is not None:
                self.time_rows[device, s] = self._constraints.row(capacity)

    def _linked_and_single(self) -> None:
        for k, shares in self.share.items():
            for first in shares.values():
                for s in range(self.levels):
                    row = self._constraints.row(0.0)
                    self._constraints.put(row, first + s, 1.0)
                    self._constraints.put(row, k, -1.0)
        for own in self._by_path().values():
            row = self._constraints.row(1.0)
            for k in own:
                self._constraints.put(row, k, 1.0)

    def _by_path(self) -> dict[int, list[int]]:
        by_path: dict[int, list[int]] = {}
        for k, i in enumerate(self.candidates):
            by_path.setdefault(self.problem.options[i].path, []).append(k)
        return by_path

    def _memory(self) -> None:
        """Adds the memory constraints, in which bytes are in units of their budget."""
        p = self.problem
        total = {
            place: self._constraints.row(1.0) for place, budget in p.budget.items() if budget is not None
        }
        unit = {place: max(p.budget[place] or 0.0, 1.0) for place in total}
        self._memory_of_devices(total, unit)
        self._memory_of_tiers(total, unit)

    def _memory_of_devices(self, total: Mapping[str, int], unit: Mapping[str, float]) -> None:
        """Adds the memory that paths take on their devices. total: budget rows; unit: bytes; by place."""
        p = self.problem
        rows_of: dict[int, int] = {}
        working: dict[str, int] = {}
        for path, own in self._by_path().items():
            profiled = p.paths[path]
            device, group = profiled.path.device, self._option(own[0]).group
            if device not in total:
                continue
            if group not in rows_of:
                rows_of[group] = self._charged(total[device])
            if device not in working:
                working[device] = self._charged(total[device], float(p.lanes[device].count))
            self._at_least(rows_of[group], {k: self._option(k).device_bytes / unit[device] for k in own})
            self._at_least(working[device], {k: profiled.memory.peak / unit[device] for k in own})
            for k in own:
                self._constraints.put(total[device], k, profiled.memory.fixed / unit[device])

    def _memory_of_tiers(self, total: Mapping[str, int], unit: Mapping[str, float]) -> None:
        """Adds the host memory and disk that paths take below their devices; a bundle's rows count once."""
        p = self.problem
        kept: dict[tuple[str, str], int] = {}
        for path, own in self._by_path().items():
            profiled = p.paths[path]
            bundle = str(profiled.path.bundle)
            for tier in ("host", "disk"):
                place = p.host if tier == "host" else "disk"
                beyond = {
                    k: self._option(k).next_tier_bytes if tier == "host" else self._option(k).file_bytes
                    for k in own
                    if self._option(k).tier == tier
                }
                if not beyond or place is None or place not in total:
                    continue
                if (tier, bundle) not in kept:
                    kept[tier, bundle] = self._charged(total[place])
                shared = self._whole_on_host(bundle) if tier == "host" else None
                whole = float(sum(profiled.memory.tables.values())) / unit[place]
                self._at_least(
                    kept[tier, bundle], {k: size / unit[place] for k, size in beyond.items()}, shared, whole
                )

    def _option(self, k: int) -> Option:
        return self.problem.options[self.candidates[k]]

    def _charged(self, total: int, times: float = 1.0) -> int:
        """Adds a variable for bytes that count against a budget."""
        variable = self._variable()
        self._constraints.put(total, variable, times)
        return variable

    def _at_least(
        self, variable: int, sizes: dict[int, float], less: int | None = None, by: float = 0.0
    ) -> None:
        row = self._constraints.row(0.0)
        self._constraints.put(row, variable, -1.0)
        for k, size in sizes.items():
            self._constraints.put(row, k, size)
        if less is not None:
            self._constraints.put(row, less, -by)

    def _whole_on_host(self, bundle: str) -> int | None:
        """Adds a variable that can be 1 only if a path on the host's device holds all rows of the bundle.

        A copy for other devices then costs nothing. Returns None if no candidate does.
        """
        p = self.problem
        whole = [
            k
            for k in range(self.n)
            if self._option(k).tier is None
            and p.paths[self._option(k).path].path.device == p.host
            and str(p.paths[self._option(k).path].path.bundle) == bundle
        ]
        if not whole:
            return None
        variable = self._variable()
        row = self._constraints.row(0.0)
        self._constraints.put(row, variable, 1.0)
        for k in whole:
            self._constraints.put(row, k, -1.0)
        return variable

    def solve(self, time_limit_s: float) -> Solution:
        """Solves the program within a time limit. Raises PlanImpossible if it finds no solution."""
        n = len(self.gain)
        upper = np.full(n, np.inf)
        upper[: self.shares_end] = 1.0
        result = milp(
            -np.array(self.gain),
            integrality=np.arange(n) < self.n,
            bounds=Bounds(np.zeros(n), upper),
            constraints=LinearConstraint(self._constraints.matrix(n), ub=np.array(self._constraints.limits)),
            options={"mip_rel_gap": GAP, "time_limit": time_limit_s},
        )
        if result.x is None:
            raise PlanImpossible(
                f"the solver found no plan in {time_limit_s:g} s ({result.message}); give it fewer paths"
            )
        deployed = [i for k, i in enumerate(self.candidates) if result.x[k] > 0.5]
        best = -float(result.fun)
        bound = best if result.mip_dual_bound is None else -float(result.mip_dual_bound)
        return Solution(deployed, max(bound - best, 0.0) / best if best > 0 else 0.0)

    def relaxation_bound(self) -> float:
        """Returns an upper bound of the value per second, from the linear relaxation."""
        n = len(self.gain)
        upper = np.full(n, np.inf)
        upper[: self.shares_end] = 1.0
        result = linprog(
            -np.array([*self.worth, *([0.0] * (n - self.shares_end))]),
            A_ub=self._constraints.matrix(n),
            b_ub=self._constraints.limits,
            bounds=np.stack((np.zeros(n), upper), axis=1),
            method="highs",
        )
        return -float(result.fun) * self._unit

    def solve_shares(self) -> tuple[F64, dict[str, float], float]:
        """Solves the linear program with all candidates deployed.

        Returns shares [options, classes, levels], prices of the devices' time, and the price of the front's
        time.
        """
        rows = self.memory_from
        served = np.zeros((self.n, len(self.problem.classes), self.levels))
        prices = dict.fromkeys(self.problem.capacity, 0.0)
        columns = slice(self.n, self.shares_end)
        if self.shares_end == self.n:
            return served, prices, 0.0
        result = linprog(
            -np.array(self.gain[columns]),
            A_ub=self._constraints.matrix(self.shares_end, rows)[:, self.n :],
            b_ub=self._constraints.limits[:rows],
            bounds=(0.0, 1.0),
            method="highs",
        )
        if result.x is None:
            raise PlanImpossible(f"the solver could not distribute the load: {result.message}")
        for k, shares in self.share.items():
            for c, first in shares.items():
                served[k, c] = result.x[first - self.n : first - self.n + self.levels]
        duals = {
            key: -self._unit * float(result.ineqlin.marginals[row]) for key, row in self.time_rows.items()
        }
        for device in prices:
            prices[device] = sum(v for (name, _), v in duals.items() if name == device)
        return served, prices, sum(v for (name, _), v in duals.items() if name == "front")
