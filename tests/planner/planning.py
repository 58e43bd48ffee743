"""Profiles, machines and tables for tests of planning: made by hand, so that results can be foreseen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from polyrec.models.tiers.tier_settings import RemoteStore, TierCuts
from polyrec.planner.deployment.rank_accesses import RankedAccesses
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.devices import Device, Machine, Remote
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.placement import PlacedPath, Placement
from polyrec.planner.plan import Plan, PlannedPath
from polyrec.planner.profile import Front, Memory, PathProfile, Profile
from polyrec.planner.traffic import Arrivals, Sizes, Traffic

ROWS = (1, 64, 512, 4096)


def machine(
    *,
    cores: int = 2,
    memory: int = 10**9,
    gpu: int | None = None,
    disk: bool = False,
    remote: str | None = None,
    price: float | None = None,
) -> Machine:
    """gpu: bytes of a GPU's memory, None for none. remote: URL of a store, filled when opened."""
    devices = [Device(name="cpu", kind="cpu", lanes=cores, memory_bytes=memory, price_per_hour=price)]
    if gpu is not None:
        devices.append(
            Device(name="cuda:0", kind="gpu", lanes=1, memory_bytes=gpu, link=8e9, price_per_hour=price)
        )
    figures = {"disk_bytes": 10**12, "disk_bandwidth": 2e9, "disk_latency_s": 1e-4} if disk else {}
    store = None
    if remote is not None:
        named = RemoteStore(url=remote, timeout_ms=5000, fill=True)
        store = Remote(store=named, latency_s=3e-4, bandwidth=2e8)
    return Machine(name="made", devices=tuple(devices), remote=store, **figures)


def path(
    name: str,
    *,
    quality: float = 0.8,
    fixed_s: float = 1e-4,
    row_s: float = 1e-6,
    tables: Mapping[str, int] | None = None,
    fixed: int = 1000,
    peak: int = 0,
    bundle: str | Path | None = None,
    origin: Literal["measured", "derived"] = "derived",
) -> PathProfile:
    """`table@cpu`: its time is fixed_s and row_s for each row, the tail half as much again."""
    representation, _, device = name.partition("@")
    median = tuple(fixed_s + row_s * n for n in ROWS)
    return PathProfile(
        path=PlannedPath(
            name=name, bundle=Path(bundle or f"/nowhere/{representation}"), runtime="onnx", device=device
        ),
        representation=representation,
        quality=quality,
        metrics={"accuracy": quality},
        memory=Memory(tables=dict(tables or {"t": 1_000_000}), fixed=fixed, peak=peak),
        latency=LatencyModel(rows=ROWS, median_s=median, tail_s=tuple(1.5 * s for s in median)),
        origin=origin,
    )


def profile(*paths: PathProfile, on: Machine | None = None, front: Front | None = None) -> Profile:
    return Profile(machine=on or machine(), paths=paths, front=front)


def traffic(rate: float, rows: float = 20, arrivals: Arrivals | None = None) -> Traffic:
    return Traffic(rate=rate, sizes=Sizes(kind="fixed", mean=rows), arrivals=arrivals or Arrivals())


def skewed(rows: int = 1000, row_bytes: float = 1000.0, tables: int = 1, lookups: float = 1.0) -> Tables:
    """Tables in which the row of rank r is accessed in proportion to 1 / (r + 1)."""
    counts = np.maximum(100_000 // np.arange(1, rows + 1), 1)
    names = ("t", *(f"t{i}" for i in range(1, tables)))
    return Tables(names, (RankedAccesses.from_counts(counts),) * tables, (row_bytes,) * tables, lookups)


def placed(plan: Plan, **rows: int) -> Plan:
    """The plan with a placement of one table, the same for each path. rows: by tier."""
    paths = (PlacedPath(path=path.name, tables={"item": TierCuts(**rows)}) for path in plan.paths)
    return plan.model_copy(update={"placement": Placement(paths=tuple(paths))})
