"""Groups lanes of several models into pools that compete for the same cores, event loop or accelerator.

A pool's capacity is the number of batches that may execute at a time. Lanes pinned to overlapping sets of
cores form one pool of all these cores, and an unpinned lane overlaps with all of them. Lanes that do not
compete with another model are in no pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.planner.plan import LaneKind, PlannedLane

LaneId = tuple[int, int]
"""Index of the model, index of its lane."""


@dataclass(frozen=True, slots=True)
class LanePlace:
    """The place where a lane executes. cores: the CPU cores it is pinned to, empty for any."""

    device: str
    kind: LaneKind
    cores: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Pool:
    """Lanes of at least two models that compete. capacity: maximum concurrent batches."""

    capacity: int
    lanes: tuple[LaneId, ...]


def place_of(lane: PlannedLane) -> LanePlace:
    """Returns the place of a planned lane."""
    return LanePlace(lane.device, lane.kind, frozenset(lane.cores))


def pools_of(models: Sequence[Sequence[LanePlace]], cores: frozenset[int]) -> tuple[Pool, ...]:
    """Returns the pools, accelerators first, the event loop last. cores: all cores the server may use."""
    loop: list[LaneId] = []
    accelerators: dict[str, list[LaneId]] = {}
    pinned: list[tuple[frozenset[int], list[LaneId]]] = []
    for m, lanes in enumerate(models):
        for i, lane in enumerate(lanes):
            if lane.kind == "inline":
                loop.append((m, i))
            elif lane.device != "cpu":
                accelerators.setdefault(lane.device, []).append((m, i))
            else:
                pinned = _joined(pinned, lane.cores or cores, (m, i))
    found = [(_max_lanes_of_one_model(ids), ids) for ids in accelerators.values()]
    found += [(len(pool_cores), ids) for pool_cores, ids in pinned]
    found.append((1, loop))
    return tuple(
        Pool(capacity, tuple(ids))
        for capacity, ids in found
        if len(ids) > capacity and len({m for m, _ in ids}) > 1
    )


def _joined(
    pinned: list[tuple[frozenset[int], list[LaneId]]], cores: frozenset[int], lane: LaneId
) -> list[tuple[frozenset[int], list[LaneId]]]:
    """Adds a lane to the sets of cores, and merges all sets that it overlaps with."""
    apart, ids = [], [lane]
    for other_cores, other_ids in pinned:
        if other_cores & cores:
            cores, ids = cores | other_cores, other_ids + ids
        else:
            apart.append((other_cores, other_ids))
    return [*apart, (cores, ids)]


def _max_lanes_of_one_model(lanes: Sequence[LaneId]) -> int:
    """Returns the largest number of lanes of one model, as its plan assumes that all may run at a time."""
    models = [m for m, _ in lanes]
    return max(models.count(m) for m in models)
