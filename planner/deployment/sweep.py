"""Plans for all combinations of SLO, rate, cores and memory, to show their trade-offs.

Each text like `slo=5,10,20` is an axis. Every combination yields a `SweepPoint` with goodput, quality,
bottlenecks and cost, or with the reason for which there is no plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from polyrec.models.amounts import percent, rate, size
from polyrec.models.text_table import aligned
from polyrec.planner.deployment.proposal import propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.deployment.solver.program import PlanImpossible
from polyrec.planner.devices import Machine, MachineError, parse_bytes
from polyrec.planner.plan import PlanError
from polyrec.planner.profile import Profile

KEYS = ("slo", "rate", "cores", "memory.DEVICE", "copies.DEVICE")
CEILINGS = {"slo": 3.6e6, "rate": 1e15, "cores": 1e5, "copies": 1e5}
MOST = 400
"""Maximum number of plans in one sweep."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One swept parameter. values: in its unit (ms, queries/s, cores, bytes or copies)."""

    key: str
    values: tuple[float, ...]

    def show(self, value: float) -> str:
        """Formats a value."""
        if self.key.startswith("memory."):
            return size(value)
        return f"{value:g} ms" if self.key == "slo" else f"{value:,g}"


@dataclass(frozen=True, slots=True)
class SweepStep:
    """One combination: values by key, and the requirements."""

    values: dict[str, float]
    requirements: Requirements


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Result of one combination. shares: share of the rows by path. reason: why there is no plan."""

    values: dict[str, float]
    rows_per_s: float = 0.0
    information_per_s: float = 0.0
    served: float = 0.0
    quality: float | None = None
    shares: dict[str, float] | None = None
    bound: str = ""
    cost_per_million: float | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the point as plain data for JSON."""
        return asdict(self)


def parse_sweep(text: str, machine: Machine) -> Axis:
    """Parses an axis like `slo=5,10` or `memory.cpu=1GB,2GB`. Raises PlanError or MachineError."""
    key, equals, listed = (part.strip() for part in text.partition("="))
    if not equals or not listed:
        raise PlanError(f"sweep '{text}': write KEY=VALUE,VALUE, like slo=5,10,20")
    kind, dot, device = key.partition(".")
    if kind in ("memory", "copies") and dot:
        try:
            known = machine.device(device).name if (kind, device) != ("memory", "disk") else "disk"
        except MachineError as e:
            raise PlanError(f"sweep '{text}': {e}") from None
        if kind == "copies" and machine.device(known).kind == "cpu":
            raise PlanError(f"sweep '{text}': a machine has one CPU; sweep cores instead")
        key = f"{kind}.{known}"
    elif key not in KEYS:
        raise PlanError(f"sweep '{text}': unknown key '{key}'; sweep one of {', '.join(KEYS)}")
    return Axis(key, tuple(_value(text, kind, part.strip()) for part in listed.split(",")))


def _value(text: str, kind: str, given: str) -> float:
    try:
        value = float(parse_bytes(given)) if kind == "memory" else float(given)
    except (MachineError, ValueError):
        raise PlanError(
            f"sweep '{text}': '{given}' is not a {'size' if kind == 'memory' else 'number'}"
        ) from None
    whole = kind in ("cores", "copies")
    if not math.isfinite(value) or value <= 0 or (whole and value != int(value)):
        raise PlanError(f"sweep '{text}': {given} is not a positive {'whole ' if whole else ''}number")
    if value > CEILINGS.get(kind, math.inf):
        raise PlanError(f"sweep '{text}': {given} is more than {CEILINGS[kind]:,.0f}")
    return value


def steps(requirements: Requirements, axes: Sequence[Axis]) -> list[SweepStep]:
    """Returns all combinations, the last axis fastest. Raises PlanError for a repeated key or too many."""
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise PlanError(f"'{key}' is swept twice; give all its values in one --sweep")
    n = math.prod(len(axis.values) for axis in axes)
    if n > MOST:
        raise PlanError(f"this sweep has {n:,} combinations, at most {MOST} are planned; give fewer values")
    found = []
    for combination in product(*(axis.values for axis in axes)):
        values = dict(zip(keys, combination, strict=True))
        one = requirements
        for key, value in values.items():
            one = _with(one, key, value)
        found.append(SweepStep(values, one))
    return found


def _with(requirements: Requirements, key: str, value: float) -> Requirements:
    kind, _, device = key.partition(".")
    if kind == "slo":
        return replace(requirements, slo_s=value / 1e3)
    if kind == "rate":
        return replace(requirements, traffic=requirements.traffic.model_copy(update={"rate": value}))
    if kind == "cores":
        return replace(requirements, cores=int(value))
    if kind == "memory":
        return replace(requirements, memory={**requirements.memory, device: int(value)})
    return replace(requirements, copies={**requirements.copies, device: int(value)})


def plan_step(profile: Profile, step: SweepStep, tables: Sequence[Tables | None]) -> SweepPoint:
    """Plans one combination."""
    try:
        e = propose(profile, step.requirements, tables, more=False).plan.expected
    except PlanImpossible as impossible:
        return SweepPoint(step.values, reason=str(impossible))
    assert e is not None
    return SweepPoint(
        step.values,
        e.rows_per_s,
        e.information_per_s,
        e.served,
        e.quality,
        {p.path: p.share for p in e.paths if p.share},
        ", ".join(f"{b.kind} of {b.what}" if b.kind != "slo" else "SLO" for b in e.bound) or "nothing",
        e.cost_per_million,
    )


def lines(points: Iterable[SweepPoint], axes: Sequence[Axis]) -> list[str]:
    """Formats the points as a table."""
    points = list(points)
    priced = any(p.cost_per_million is not None for p in points)
    head = [a.key for a in axes] + ["rows/s", "served", "quality", "information/s"]
    rows = [[*head, *(["a million cost"] if priced else []), "bound by", "paths"]]
    for p in points:
        cells = [a.show(p.values[a.key]) for a in axes]
        if p.shares is None:
            none = ["-"] * (4 + priced)
            rows.append([*cells, *none, "", f"none: {p.reason}"])
            continue
        cost = ["-" if p.cost_per_million is None else f"{p.cost_per_million:.3g}"] if priced else []
        figures = [rate(p.rows_per_s), percent(p.served), f"{p.quality:.5f}", rate(p.information_per_s)]
        paths = ", ".join(
            f"{name} {percent(share)}" for name, share in sorted(p.shares.items(), key=lambda s: -s[1])
        )
        rows.append([*cells, *figures, *cost, p.bound, paths])
    words = [row[-2:] for row in rows]
    left = aligned([row[:-2] for row in rows], left=0)
    return [f"{a}  {b}".rstrip() for a, b in zip(left, aligned(words, left=2), strict=True)]
