"""Finds configurations: sets of paths that fit a node's memories together.

Given the worth of another query of each class (the dual prices of the fleet's program), the most valuable
node is the solution of a small mixed-integer program: which paths to open within the memory, and how to
divide its devices' time among them. Its value is what one more node would be worth.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from polyrec.models.schema.batch import F64
from polyrec.planner.fleet.provisioning.capability import NodeOffer

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


def fits(offer: NodeOffer, paths: Collection[int]) -> bool:
    """Whether a node can hold these paths together."""
    for device, budget in offer.bytes.items():
        own = [offer.runnables[i] for i in paths if offer.runnables[i].device == device]
        rows = {r.bundle: r.rows_bytes for r in own}
        peaks = {m: max(r.peak_bytes for r in own if r.model == m) for m in {r.model for r in own}}
        used = sum(rows.values()) + sum(r.fixed_bytes for r in own)
        used += offer.lanes.get(device, 1) * sum(peaks.values())
        if used > budget * (1 + ROUNDING):
            return False
    return True


def best_node(offer: NodeOffer, worth: list[F64]) -> BestNode:
    """Returns the node that is worth most.

    worth: of a query a second of each class on each runnable, [classes] each.
    """
    n = len(offer.runnables)
    gain: list[float] = [0.0] * n
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    limits: list[float] = list(offer.capacity)

    def put(row: int, column: int, value: float) -> None:
        rows.append(row)
        columns.append(column)
        values.append(value)

    for i, r in enumerate(offer.runnables):
        for c in np.flatnonzero(np.isfinite(r.usage).all(axis=0) & (worth[i] > 0)).tolist():
            column = len(gain)
            gain.append(float(worth[i][c]))
            most = np.inf
            for resource in np.flatnonzero(r.usage[:, c]).tolist():
                put(resource, column, float(r.usage[resource, c]))
                most = min(most, float(offer.capacity[resource] / r.usage[resource, c]))
            # only on an open path
            put(len(limits), column, 1.0 / most)
            put(len(limits), i, -1.0)
            limits.append(0.0)
    continuous_from = len(gain)
    for device, budget in offer.bytes.items():
        own = [i for i in range(n) if offer.runnables[i].device == device]
        unit = max(budget, 1.0)
        total = len(limits)
        limits.append(1.0)
        charged: dict[tuple[str, object], int] = {}
        for i in own:
            r = offer.runnables[i]
            put(total, i, r.fixed_bytes / unit)
            lanes = offer.lanes.get(device, 1)
            for key, size, times in (
                (("rows", r.bundle), r.rows_bytes, 1),
                (("peak", r.model), r.peak_bytes, lanes),
            ):
                if key not in charged:
                    charged[key] = len(gain)
                    gain.append(0.0)
                    put(total, charged[key], float(times))
                put(len(limits), i, size / unit)
                put(len(limits), charged[key], -1.0)
                limits.append(0.0)
    if continuous_from == n:
        return BestNode(frozenset(), 0.0)
    unit_gain = max(float(np.max(np.abs(gain))), 1e-300)
    upper = np.full(len(gain), np.inf)
    upper[:n] = 1.0
    result = milp(
        -np.array(gain) / unit_gain,
        integrality=np.arange(len(gain)) < n,
        bounds=Bounds(np.zeros(len(gain)), upper),
        constraints=LinearConstraint(
            coo_array((values, (rows, columns)), shape=(len(limits), len(gain))).tocsr(), ub=np.array(limits)
        ),
        options={"mip_rel_gap": 1e-7, "time_limit": TIME_LIMIT_S},
    )
    if result.x is None:
        return BestNode(frozenset(), 0.0)
    chosen = [i for i in range(n) if result.x[i] > 0.5]
    return BestNode(frozenset(_filled(offer, chosen)), -float(result.fun) * unit_gain)


def starting_paths(offer: NodeOffer) -> list[Paths]:
    """Returns configurations to start from.

    All paths if they fit; all maximal sets of few paths; else each path with what fits beside it.
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
    """Adds all paths that still fit, in order: more paths never make a node worse."""
    chosen = list(chosen)
    for i in range(len(offer.runnables)):
        if i not in chosen and fits(offer, [*chosen, i]):
            chosen.append(i)
    return chosen
