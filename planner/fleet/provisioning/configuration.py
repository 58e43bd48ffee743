"""Finds configurations, which are sets of paths that fit in a node's memories together.

Given the worth of one more query of each class (the dual prices of the fleet's program), the most valuable
node is the solution of a small mixed-integer program: which paths to open within the memory, and how to
divide its devices' time among them. The value is what one more such node would be worth.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from polyrec.models.schema.batch import F64
from polyrec.planner.fleet.provisioning.capability import NodeOffer
from polyrec.planner.sparse_rows import SparseRows

TIME_LIMIT_S = 10.0
ROUNDING = 1e-9
ENUMERATED = 8
"""Paths of a node type up to which every maximal set of them is a configuration from the start."""
Paths = frozenset[int]
"""Paths of a configuration, as indexes into an offer's runnables."""


@dataclass(frozen=True, slots=True)
class BestNode:
    """The most valuable node of a type: its paths, and its value per second."""

    paths: Paths
    value: float


NO_NODE = BestNode(frozenset(), 0.0)


def fits(offer: NodeOffer, paths: Collection[int]) -> bool:
    """Returns whether a node can hold these paths together."""
    for device, budget in offer.bytes.items():
        own = [offer.runnables[i] for i in paths if offer.runnables[i].device == device]
        if offer.used_bytes(device, own) > budget * (1 + ROUNDING):
            return False
    return True


class _NodeProgram:
    """The mixed-integer program of the best node, built column by column and row by row.

    Columns: whether each path is open (0 or 1), queries per second of one class on one path, and whether rows
    of a bundle or working memory of a model are charged. Rows: limits of resources, of paths that are not
    open, and of memory.
    """

    def __init__(self, offer: NodeOffer) -> None:
        self._offer = offer
        self._gain = [0.0] * len(offer.runnables)
        self._constraints = SparseRows(offer.capacity)

    @property
    def has_queries(self) -> bool:
        """Whether any query is worth answering."""
        return any(self._gain)

    def add_queries(self, path: int, worth: F64) -> None:
        """Adds the classes that a path can answer. worth: value of one query per second, [classes]."""
        usage, capacity = self._offer.runnables[path].usage, self._offer.capacity
        for c in np.flatnonzero(np.isfinite(usage).all(axis=0) & (worth > 0)).tolist():
            column = self._column(float(worth[c]))
            max_rate = np.inf
            for resource in np.flatnonzero(usage[:, c]).tolist():
                self._constraints.put(resource, column, float(usage[resource, c]))
                max_rate = min(max_rate, float(capacity[resource] / usage[resource, c]))
            # only on an open path
            row = self._constraints.row(0.0)
            self._constraints.put(row, column, 1.0 / max_rate)
            self._constraints.put(row, path, -1.0)

    def add_memory(self, device: str, budget: float) -> None:
        """Limits the bytes of open paths on a device; rows count once per bundle, buffers once per model."""
        unit = max(budget, 1.0)
        total = self._constraints.row(1.0)
        lanes = self._offer.lanes.get(device, 1)
        charged: dict[tuple[str, object], int] = {}
        for path, r in enumerate(self._offer.runnables):
            if r.device != device:
                continue
            self._constraints.put(total, path, r.fixed_bytes / unit)
            for key, size, times in (
                (("rows", r.bundle), r.rows_bytes, 1),
                (("peak", r.model), r.peak_bytes, lanes),
            ):
                if key not in charged:
                    charged[key] = self._column(0.0)
                    self._constraints.put(total, charged[key], float(times))
                row = self._constraints.row(0.0)
                self._constraints.put(row, path, size / unit)
                self._constraints.put(row, charged[key], -1.0)

    def solve(self) -> tuple[list[int], float] | None:
        """Returns the open paths and their value; None if none was found within the time limit."""
        n, columns = len(self._offer.runnables), len(self._gain)
        unit = max(float(np.max(np.abs(self._gain))), 1e-300)
        upper = np.full(columns, np.inf)
        upper[:n] = 1.0
        result = milp(
            -np.array(self._gain) / unit,
            integrality=np.arange(columns) < n,
            bounds=Bounds(np.zeros(columns), upper),
            constraints=LinearConstraint(
                self._constraints.matrix(columns), ub=np.array(self._constraints.limits)
            ),
            options={"mip_rel_gap": 1e-7, "time_limit": TIME_LIMIT_S},
        )
        if result.x is None:
            return None
        return [i for i in range(n) if result.x[i] > 0.5], -float(result.fun) * unit

    def _column(self, gain: float) -> int:
        self._gain.append(gain)
        return len(self._gain) - 1


def best_node(offer: NodeOffer, worth: list[F64]) -> BestNode:
    """Returns the most valuable node.

    worth: by runnable, the value of one query per second of each class, [classes].
    """
    program = _NodeProgram(offer)
    for path, by_class in enumerate(worth):
        program.add_queries(path, by_class)
    if not program.has_queries:
        return NO_NODE
    for device, budget in offer.bytes.items():
        program.add_memory(device, budget)
    solution = program.solve()
    if solution is None:
        return NO_NODE
    chosen, value = solution
    return BestNode(frozenset(_filled(offer, chosen)), value)


def starting_paths(offer: NodeOffer) -> list[Paths]:
    """Returns the configurations to start from.

    These are all paths together if they fit, otherwise all maximal sets if there are few paths, otherwise
    each path with others that fit beside it.
    """
    everything = range(len(offer.runnables))
    if fits(offer, everything):
        return [frozenset(everything)]
    if len(everything) <= ENUMERATED:
        sizes = range(len(everything), 0, -1)
        maximal: list[Paths] = []
        for one in (frozenset(s) for n in sizes for s in combinations(everything, n) if fits(offer, s)):
            if not any(one < other for other in maximal):
                maximal.append(one)
        return maximal
    alone = [i for i in everything if fits(offer, [i])]
    return list(dict.fromkeys(frozenset(_filled(offer, [i])) for i in alone))


def _filled(offer: NodeOffer, chosen: list[int]) -> list[int]:
    """Adds all paths that still fit, in order, since more paths never make a node worse."""
    chosen = list(chosen)
    for i in range(len(offer.runnables)):
        if i not in chosen and fits(offer, [*chosen, i]):
            chosen.append(i)
    return chosen
