"""What options take of every memory: a bundle's rows once, fixed parts by path, buffers by lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.solver.problem import Problem


@dataclass(frozen=True, slots=True)
class Occupied:
    """Bytes in one memory. rows: of tables; cache: pages of those on disk; fixed: decoders and dense nets;
    working: buffers."""

    rows: float
    cache: float
    fixed: float
    working: float

    @property
    def bytes(self) -> float:
        return self.rows + self.cache + self.fixed + self.working


def occupied(problem: Problem, options: Sequence[Option]) -> dict[str, Occupied]:
    """By memory: of every device, and `disk`."""
    places = dict.fromkeys([*problem.lanes, *([problem.host] if problem.host else []), "disk"])
    return {place: _occupied(problem, options, place) for place in places}


def _occupied(problem: Problem, options: Sequence[Option], where: str) -> Occupied:
    resident: dict[int, float] = {}
    cache: dict[int, float] = {}
    whole: set[str] = set()
    beyond: dict[str, float] = {}
    fixed, working = 0.0, 0.0
    for o in options:
        p = problem.paths[o.path]
        bundle = str(p.path.bundle)
        if p.path.device == where:
            if o.held > resident.get(o.group, -1.0) + cache.get(o.group, 0.0):
                resident[o.group], cache[o.group] = o.resident, o.cache
            fixed += p.memory.fixed
            working = max(working, float(p.memory.peak * problem.lanes[where].count))
            if o.tier is None:
                whole.add(bundle)
        if (o.tier == "host" and where == problem.host) or (o.tier == "disk" and where == "disk"):
            size = o.elsewhere if o.tier == "host" else o.filed
            beyond[bundle] = max(beyond.get(bundle, 0.0), size)
    # rows that a path of this very memory holds whole need no second copy for others
    copies = sum(size for bundle, size in beyond.items() if bundle not in whole)
    return Occupied(sum(resident.values()) + copies, sum(cache.values()), fixed, working)
