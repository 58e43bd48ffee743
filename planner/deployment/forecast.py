"""Forecasts what a deployment can serve, what limits it, and what upgrades would add (`Plan.expected`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from polyrec.models.amounts import size
from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.solver.choice import Choice, choose, without_memory_limit, without_time_limit
from polyrec.planner.deployment.solver.problem import Problem
from polyrec.planner.deployment.solver.program import PlanImpossible
from polyrec.planner.expected import Bottleneck, Expected, ExpectedDevice, ExpectedPath, Upgrade

MORE_BYTES = 10**9
MIN_GAIN = 1e-6
"""Relative gain below which a difference is solver tolerance."""

Others = Callable[[Requirements], Choice | None]


def forecast(problem: Problem, choice: Choice, bounds: bool, others: Others | None) -> Expected:
    """Returns what the plan should achieve.

    bounds: whether to search for bottlenecks. others: chooses for other requirements, to compute the gain of
    upgrades; None leaves that out.
    """
    levels = problem.levels
    stated = np.array([level.share for level in levels])
    rates = np.array([level.rate for level in levels])
    shares = np.array([c.share for c in problem.classes])
    offered = float((rates * stated).sum() * (shares * problem.rows).sum())
    options = [problem.options[i] for i in choice.options]
    # queries a second, [deployed, classes]
    queries = (choice.served * problem.queries * stated).sum(axis=2)
    rows = (queries * problem.rows).sum(axis=1)
    information = float(np.dot(rows, [problem.paths[o.path].quality for o in options]))
    accuracy = [problem.paths[o.path].accuracy for o in options]
    devices = _devices(problem, choice, queries)
    kept = {c for o in problem.options for c in np.flatnonzero(np.isfinite(o.cost_s)).tolist()}
    lost = [c for c in range(len(problem.classes)) if c not in kept]
    unserved = float((shares * problem.rows)[lost].sum() / (shares * problem.rows).sum())
    best = max(problem.values)
    bound: tuple[Bottleneck, ...] = ()
    more: tuple[Upgrade, ...] = ()
    if choice.value < offered * best * (1 - MIN_GAIN):
        bound = _bounds(problem, choice, offered * unserved * best) if bounds else ()
        more = _upgrades(problem, choice, others) if others is not None else ()
    return Expected(
        traffic=problem.requirements.traffic,
        slo_ms=1e3 * problem.requirements.slo_s,
        machine=problem.machine.name,
        asked_rows_per_s=offered,
        rows_per_s=choice.rows,
        information_per_s=information,
        quality=information / choice.rows if choice.rows else 0.0,
        correct_per_s=None if None in accuracy else float(np.dot(rows, [a or 0.0 for a in accuracy])),
        unserved=min(unserved, 1.0),
        paths=_paths(problem, choice, rows),
        devices=tuple(devices),
        bound=bound,
        more=more,
        gap=choice.gap,
        cost_per_million=_cost(problem, [d.device for d in devices if d.device != "front"], choice.rows),
    )


def _devices(problem: Problem, choice: Choice, queries: F64) -> list[ExpectedDevice]:
    """Returns load and price of each device in use, and of the front if it has its own core.

    queries: per second, [deployed, classes].
    """
    options = [problem.options[i] for i in choice.options]
    front = float((queries * problem.front_s).sum())
    devices = []
    for device, on in problem.lanes.items():
        on_device = [k for k, o in enumerate(options) if problem.paths[o.path].path.device == device]
        if not on_device:
            continue
        busy = sum(
            float(queries[k, c] * options[k].cost_s[c])
            for k in on_device
            for c in np.flatnonzero(queries[k] > 0)
        )
        busy += front if device == problem.inline else 0.0
        price = choice.prices.get(device, 0.0)
        devices.append(ExpectedDevice(device=device, lanes=on.count, load=busy / on.count, price=price))
    if problem.inline is None and front:
        devices.append(ExpectedDevice(device="front", lanes=1, load=front, price=choice.front_price))
    return devices


def _paths(problem: Problem, choice: Choice, rows: F64) -> tuple[ExpectedPath, ...]:
    """Returns each deployed path's share of the rows. rows: rows per second, [deployed]."""
    return tuple(
        ExpectedPath(
            path=problem.paths[o.path].path.name,
            share=min(float(r / max(choice.rows, 1e-300)), 1.0),
            quality=problem.paths[o.path].quality,
            largest_rows=o.largest_rows,
            batch_rows=o.batch_rows,
        )
        for o, r in zip((problem.options[i] for i in choice.options), rows, strict=True)
    )


def _bounds(problem: Problem, choice: Choice, unserved: float) -> tuple[Bottleneck, ...]:
    """Returns the resources whose limit, if lifted alone, would raise the value; largest gain first."""
    found = []
    if unserved > MIN_GAIN * choice.value:
        found.append(Bottleneck(kind="slo", what="queries too large for the SLO", gain=unserved))
    for place, budget in problem.budget.items():
        if budget is not None:
            found += _gained(choice, without_memory_limit(problem, place), "memory", place)
    # an inline lane and the front share one core: freeing the one frees both
    for device in (*problem.capacity, *(() if problem.inline else ("front",))):
        found += _gained(choice, without_time_limit(problem, device), "time", device)
    return tuple(sorted(found, key=lambda b: -b.gain))


def _gained(choice: Choice, freed: Problem, kind: str, what: str) -> list[Bottleneck]:
    try:
        gain = choose(freed).value - choice.value
    except PlanImpossible:
        return []
    return (
        [Bottleneck.model_validate({"kind": kind, "what": what, "gain": gain})]
        if gain > MIN_GAIN * choice.value
        else []
    )


def _upgrades(problem: Problem, choice: Choice, others: Others) -> tuple[Upgrade, ...]:
    """Returns the gain of one more core, of one more of each accelerator, and of one more GB of each memory.

    Plans again for each.
    """
    requirements = problem.requirements
    upgraded: dict[str, Requirements] = {}
    for device, on in problem.lanes.items():
        if on.device.kind == "cpu":
            upgraded[f"1 core of {device}"] = replace(
                requirements, cores=(requirements.cores or on.device.lanes) + 1
            )
        else:
            upgraded[f"1 {device}"] = replace(
                requirements, copies={**requirements.copies, device: requirements.copies.get(device, 1) + 1}
            )
    for place, budget in problem.budget.items():
        used = place != "disk" or any(problem.options[i].tier == "disk" for i in choice.options)
        if budget is not None and used:
            upgraded[f"{size(MORE_BYTES)} of {place}"] = replace(
                requirements, memory={**requirements.memory, place: int(budget) + MORE_BYTES}
            )
    found = []
    for what, other in upgraded.items():
        if (then := others(other)) is not None:
            value, rows = then.value - choice.value, then.rows - choice.rows
            telling = abs(value) > MIN_GAIN * choice.value
            found.append(
                Upgrade(
                    what=what,
                    information_per_s=value if telling else 0.0,
                    rows_per_s=rows if telling else 0.0,
                )
            )
    return tuple(sorted(found, key=lambda m: -m.information_per_s))


def _cost(problem: Problem, devices: list[str], rows_per_s: float) -> float | None:
    """Returns the cost of a million predictions in the unit of the devices' prices; None without prices.

    The host reads requests, so it is always included.
    """
    used = dict.fromkeys([*devices, *([problem.host] if problem.host else [])])
    prices = [problem.machine.device(name).price_per_hour for name in used]
    if not rows_per_s or any(p is None for p in prices):
        return None
    hourly = sum(
        p * problem.requirements.copies.get(name, 1)
        for name, p in zip(used, prices, strict=True)
        if p is not None
    )
    return hourly / 3600 / rows_per_s * 1e6
