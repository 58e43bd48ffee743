"""Computes the memory use of options: a bundle's rows once, fixed parts per path, buffers per lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.solver.problem import Problem


@dataclass(frozen=True, slots=True)
class MemoryOccupancy:
    """Bytes used in one memory.

    rows: rows of tables. cache: cache of rows on disk. fixed: decoders and dense nets. working: buffers.
    """

    rows: float
    cache: float
    fixed: float
    working: float

    @property
    def bytes(self) -> float:
        return self.rows + self.cache + self.fixed + self.working


def memory_occupancy(problem: Problem, options: Sequence[Option]) -> dict[str, MemoryOccupancy]:
    """Returns the use of every device's memory and of `disk`, by name."""
    places = dict.fromkeys([*problem.lanes, *([problem.host] if problem.host else []), "disk"])
    return {place: _occupied(problem, options, place) for place in places}


def _occupied(problem: Problem, options: Sequence[Option], where: str) -> MemoryOccupancy:
    resident: dict[int, float] = {}
    cache: dict[int, float] = {}
    whole: set[str] = set()
    beyond: dict[str, float] = {}
    fixed, working = 0.0, 0.0
    for o in options:
        p = problem.paths[o.path]
        bundle = str(p.path.bundle)
        if p.path.device == where:
            if o.device_bytes > resident.get(o.group, -1.0) + cache.get(o.group, 0.0):
                resident[o.group], cache[o.group] = o.resident, o.cache
            fixed += p.memory.fixed
            working = max(working, float(p.memory.peak * problem.lanes[where].count))
            if o.tier is None:
                whole.add(bundle)
        if (o.tier == "host" and where == problem.host) or (o.tier == "disk" and where == "disk"):
            size = o.next_tier_bytes if o.tier == "host" else o.file_bytes
            beyond[bundle] = max(beyond.get(bundle, 0.0), size)
    # if a path on this memory's own device holds all rows, others need no second copy
    copies = sum(size for bundle, size in beyond.items() if bundle not in whole)
    return MemoryOccupancy(sum(resident.values()) + copies, sum(cache.values()), fixed, working)
