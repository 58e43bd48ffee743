"""The optimization problem: all options, the load, and the limits of time and memory, as plain numbers.

It is built from a profile, `Requirements` and the bundles' access counts, and solved in choice.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.option import Costing, Lanes, Option, headroom
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.residency import Residency, Tables, residencies, rows_reached
from polyrec.planner.deployment.tier_cost import NOTHING_BELOW, BelowMemory, below_memory, suited
from polyrec.planner.deployment.traffic_classes import Level, SizeClass, load_levels, size_classes
from polyrec.planner.devices import Device, Machine
from polyrec.planner.plan import LaneKind
from polyrec.planner.profile import Front, Hop, PathProfile, Profile
from polyrec.planner.quality import routing_values

NO_FRONT = Front(query_s=0.0, row_s=0.0)
NO_HOP = Hop(median_s=0.0, tail_s=0.0)
HOPS: dict[LaneKind, Hop] = {
    "thread": Hop(median_s=57e-6, tail_s=90e-6),
    "process": Hop(median_s=91e-6, tail_s=273e-6),
}
"""Defaults where the profile has none, measured on an AMD EPYC."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Input of the solver.

    values: value of an answered row, by path (planner/quality.py). lanes: by device that has paths. below:
    the tiers below each path's device. budget: bytes by memory, a device's or `disk`; None is unlimited.
    capacity, front_capacity: seconds of time per second, by device and of the front; None is unlimited.
    host: the device whose memory is the host's. front_s: [classes], the front's seconds per query, headroom
    included. inline: the device whose lane shares a core with the front, if any.
    """

    requirements: Requirements
    machine: Machine
    paths: tuple[PathProfile, ...]
    values: tuple[float, ...]
    tables: tuple[Tables | None, ...]
    options: tuple[Option, ...]
    classes: tuple[SizeClass, ...]
    levels: tuple[Level, ...]
    lanes: dict[str, Lanes]
    below: tuple[BelowMemory, ...]
    budget: dict[str, float | None]
    capacity: dict[str, float | None]
    host: str | None
    front_s: F64
    inline: str | None
    front: Front
    front_capacity: float | None = 1.0

    @property
    def rows(self) -> F64:
        """Rows per query of each class, [classes]."""
        return np.array([c.rows for c in self.classes])

    @property
    def queries(self) -> F64:
        """Queries per second of each class at each level, [classes, levels].

        Capped at twice what all devices could answer of that class alone: more would not change the choice,
        and shares of it would be below the solver's tolerances.
        """
        offered = np.outer([c.share for c in self.classes], [level.rate for level in self.levels])
        best = dict.fromkeys(self.lanes, np.zeros(len(self.classes)))
        for option in self.options:
            device = self.paths[option.path].path.device
            capacity = self.capacity[device]
            rate = np.inf if capacity is None else capacity / option.cost_s
            best[device] = np.maximum(best[device], np.where(np.isfinite(option.cost_s), rate, 0.0))
        able: F64 = 2 * np.sum(list(best.values()), axis=0)
        capped: F64 = np.minimum(offered, np.where(able > 0, able, np.inf)[:, None])
        return capped

    def costing(self, path: int) -> Costing:
        """Returns the cost model of one path."""
        lanes = self.lanes[self.paths[path].path.device]
        return Costing(
            self.paths[path],
            self.tables[path],
            lanes,
            self.front,
            self.requirements,
            self.below[path],
            self.classes,
        )

    def fits_alone(self, option: Option) -> str | None:
        """Returns the memory in which the option does not fit even alone, or None."""
        for place, needed in self.needs(option).items():
            budget = self.budget.get(place)
            if budget is not None and needed > budget:
                return place
        return None

    def needs(self, option: Option) -> dict[str, float]:
        """Returns the bytes by memory that the option takes if it is deployed alone."""
        p = self.paths[option.path]
        device = p.path.device
        needs = {device: option.device_bytes + p.memory.fixed + p.memory.peak * self.lanes[device].count}
        if option.tier == "host":
            assert self.host is not None
            needs[self.host] = needs.get(self.host, 0.0) + option.next_tier_bytes
        if option.file_bytes:
            needs["disk"] = option.file_bytes
        return needs


def build_problem(profile: Profile, requirements: Requirements, tables: Sequence[Tables | None]) -> Problem:
    """Builds the problem of a profile.

    tables: of each path; None if its bundle's counts are unknown, in which case all of its rows are resident
    or none.
    """
    machine, front = profile.machine, profile.front or NO_FRONT
    classes, levels = size_classes(requirements.traffic.sizes), load_levels(requirements.traffic)
    used = dict.fromkeys(p.path.device for p in profile.paths)
    hops = HOPS | profile.hops
    lanes = {name: _lanes(machine.device(name), list(used), machine, requirements, hops) for name in used}
    host = next((d.name for d in machine.devices if d.kind == "cpu"), None)
    budget: dict[str, float | None] = {
        d.name: float(requirements.memory.get(d.name, d.memory_bytes)) for d in machine.devices
    }
    budget["disk"] = (
        float(requirements.memory["disk"]) if "disk" in requirements.memory else machine.disk_bytes
    )
    below = tuple(_tiers_below(profile, i, tables[i], lanes) for i in range(len(profile.paths)))
    costings = [
        Costing(path, tables[i], lanes[path.path.device], front, requirements, below[i], classes)
        for i, path in enumerate(profile.paths)
    ]
    inline = next((name for name, one in lanes.items() if one.kind == "inline"), None)
    worth = routing_values({p.path.name: p.quality for p in profile.paths}, profile.differences)
    return Problem(
        requirements=requirements,
        machine=machine,
        paths=profile.paths,
        values=tuple(worth[p.path.name] for p in profile.paths),
        tables=tuple(tables),
        options=_options(profile, tables, below, costings, budget["disk"]),
        classes=classes,
        levels=levels,
        lanes=lanes,
        below=below,
        budget=budget,
        capacity={name: float(one.count) for name, one in lanes.items()},
        host=host,
        front_s=_front_seconds(front, classes, requirements.slo_s),
        inline=inline,
        front=front,
    )


def _options(
    profile: Profile,
    tables: Sequence[Tables | None],
    below: Sequence[BelowMemory],
    costings: Sequence[Costing],
    disk: float | None,
) -> tuple[Option, ...]:
    """Returns every way to deploy each path that can answer some query within the SLO.

    disk: bytes of the disk; None is unlimited.
    """
    groups: dict[tuple[str, str], int] = {}
    options: list[Option] = []
    stored = {str(p.path.bundle): float(sum(p.memory.tables.values())) for p in profile.paths}
    # paths of one bundle share the same tables object
    tried: dict[int, tuple[Residency, ...]] = {}
    for i, path in enumerate(profile.paths):
        bundle = str(path.path.bundle)
        group = groups.setdefault((bundle, path.path.device), len(groups))
        if id(tables[i]) not in tried:
            tried[id(tables[i])] = residencies(tables[i])
        found = [costings[i].option(i, group, None)]
        for part in tried[id(tables[i])] if below[i].names else ():
            # the whole disk for one bundle, or divided among the bundles by size
            share = stored[bundle] / max(sum(stored.values()), 1.0)
            disk_bytes = () if disk is None else (disk, disk * share)
            to_try = _local_cuts_to_try(tables[i], part, disk_bytes, below[i].names)
            found += [costings[i].option(i, group, part, local_cuts) for local_cuts in to_try]
        options += [option for option in found if option.largest_rows]
    return tuple(options)


def _front_seconds(front: Front, classes: Sequence[SizeClass], slo_s: float) -> F64:
    """Returns the front's seconds per query of each class, [classes], with headroom under the SLO."""
    shares = [c.share for c in classes]
    spent = np.array([front.query_s + front.row_s * c.rows for c in classes])
    mean = float(np.dot(spent, shares))
    if mean:
        spent = spent / headroom(slo_s / mean, float(np.dot(spent**2, shares)) / mean**2)
    return spent


def _tiers_below(profile: Profile, i: int, tables: Tables | None, lanes: Mapping[str, Lanes]) -> BelowMemory:
    """Returns the tiers below a path's device; lanes in processes have none."""
    path = profile.paths[i].path
    on_device = lanes[path.device]
    if on_device.kind == "process" or tables is None:
        return NOTHING_BELOW
    own = [p.path.name for p in profile.paths if p.path.bundle == path.bundle]
    measured = suited(profile.cut_times, own, tables.mean_row_bytes)
    return below_memory(on_device.device, profile.machine, tables.mean_row_bytes, measured)


def _local_cuts_to_try(
    tables: Tables | None, resident: Residency, disk_bytes: Sequence[float], below: Sequence[str]
) -> list[tuple[int, ...] | None]:
    """Cuts between disk and remote store to try, by table; None: no remote rows."""
    if tables is None or "remote" not in below or below[0] != "disk":
        return [None]
    whole = tuple(t.size for t in tables.accesses_by_rank)
    found = [rows_reached(tables, resident.cuts, max(size - resident.bytes, 0.0)) for size in disk_bytes]
    return [None if local_cuts == whole else local_cuts for local_cuts in dict.fromkeys([whole, *found])]


def _lanes(
    device: Device,
    used: list[str],
    machine: Machine,
    requirements: Requirements,
    hops: Mapping[LaneKind, Hop],
) -> Lanes:
    """Returns a device's lanes. A CPU has one per core, except for the front's core and one per other lane.

    A thread on that core feeds the other lane. On two cores or fewer, the CPU has a single lane, inline in
    the front's event loop unless another kind is required.
    """
    if device.kind != "cpu":
        return Lanes(device, device.lanes * requirements.copies.get(device.name, 1), "thread", hops["thread"])
    cores = requirements.cores or device.lanes
    fed = sum(machine.device(n).lanes * requirements.copies.get(n, 1) for n in used if n != device.name)
    kind = requirements.lane or ("inline" if cores <= 2 else "process")
    if kind == "inline":
        return Lanes(device, 1, kind, NO_HOP)
    return Lanes(device, max(1, cores - 1 - fed), kind, hops[kind])
