"""The prospect of a choice: what it serves, what bounds it, what one more of anything would buy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from polyrec.models.amounts import size
from polyrec.planner.deployment.requirements import Ask
from polyrec.planner.deployment.solver.choice import Choice, choose, timeless, without
from polyrec.planner.deployment.solver.problem import Problem
from polyrec.planner.deployment.solver.program import PlanImpossible
from polyrec.planner.expected import Bound, Expected, ExpectedDevice, ExpectedPath, More

MORE_BYTES = 10**9
TELLING = 1e-6
"""Relative. Gains below this are the solver's tolerance."""

Others = Callable[[Ask], Choice | None]


def expect(problem: Problem, choice: Choice, bounds: bool = True, others: Others | None = None) -> Expected:
    """bounds: whether to find out what binds. others: what would be chosen for another ask, to say what
    more would buy; None leaves that out."""
    levels = problem.levels
    stated = np.array([level.share for level in levels])
    rates = np.array([level.rate for level in levels])
    shares = np.array([c.share for c in problem.classes])
    asked = float((rates * stated).sum() * (shares * problem.rows).sum())
    options = [problem.options[i] for i in choice.options]
    # queries a second, [deployed, classes]
    queries = (choice.served * problem.queries * stated).sum(axis=2)
    rows = (queries * problem.rows).sum(axis=1)
    front = float((queries * problem.front_s).sum())
    devices = []
    for device, on in problem.lanes.items():
        own = [k for k, o in enumerate(options) if problem.paths[o.path].path.device == device]
        if not own:
            continue
        busy = sum(
            float(queries[k, c] * options[k].cost_s[c]) for k in own for c in np.flatnonzero(queries[k] > 0)
        )
        busy += front if device == problem.inline else 0.0
        price = choice.prices.get(device, 0.0)
        devices.append(ExpectedDevice(device=device, lanes=on.count, load=busy / on.count, price=price))
    if problem.inline is None and front:
        devices.append(ExpectedDevice(device="front", lanes=1, load=front, price=choice.front_price))
    kept = {c for o in problem.options for c in np.flatnonzero(np.isfinite(o.cost_s)).tolist()}
    lost = [c for c in range(len(problem.classes)) if c not in kept]
    unserved = float((shares * problem.rows)[lost].sum() / (shares * problem.rows).sum())
    best = max(p.accuracy for p in problem.paths)
    bound: tuple[Bound, ...] = ()
    more: tuple[More, ...] = ()
    if choice.correct < asked * best * (1 - TELLING):
        bound = _bounds(problem, choice, asked * unserved * best) if bounds else ()
        more = _more(problem, choice, others) if others is not None else ()
    return Expected(
        traffic=problem.ask.traffic,
        slo_ms=1e3 * problem.ask.slo_s,
        machine=problem.machine.name,
        asked_rows_per_s=asked,
        rows_per_s=choice.rows,
        correct_per_s=choice.correct,
        accuracy=min(choice.correct / choice.rows, 1.0) if choice.rows else 0.0,
        unserved=min(unserved, 1.0),
        paths=tuple(
            ExpectedPath(
                path=problem.paths[o.path].path.name,
                share=min(float(r / max(choice.rows, 1e-300)), 1.0),
                accuracy=problem.paths[o.path].accuracy,
                largest_rows=o.largest_rows,
                batch_rows=o.batch_rows,
            )
            for o, r in zip(options, rows, strict=True)
        ),
        devices=tuple(devices),
        bound=bound,
        more=more,
        gap=choice.gap,
        cost_per_million=_cost(problem, [d.device for d in devices if d.device != "front"], choice.rows),
    )


def _bounds(problem: Problem, choice: Choice, unserved: float) -> tuple[Bound, ...]:
    """Each thing that alone, without limit, would raise correct predictions, the heaviest first."""
    found = []
    if unserved > TELLING * choice.correct:
        found.append(Bound(kind="promise", what="queries too large for the promise", gain=unserved))
    for place, budget in problem.budget.items():
        if budget is not None:
            found += _gained(choice, without(problem, place), "memory", place)
    # an inline lane and the front share one core: freeing the one frees both
    for device in (*problem.capacity, *(() if problem.inline else ("front",))):
        found += _gained(choice, timeless(problem, device), "time", device)
    return tuple(sorted(found, key=lambda b: -b.gain))


def _gained(choice: Choice, freed: Problem, kind: str, what: str) -> list[Bound]:
    try:
        gain = choose(freed).correct - choice.correct
    except PlanImpossible:
        return []
    return (
        [Bound.model_validate({"kind": kind, "what": what, "gain": gain})]
        if gain > TELLING * choice.correct
        else []
    )


def _more(problem: Problem, choice: Choice, others: Others) -> tuple[More, ...]:
    """Plans made anew with one more core, one more of each accelerator, one more GB of each memory."""
    ask = problem.ask
    asks: dict[str, Ask] = {}
    for device, on in problem.lanes.items():
        if on.device.kind == "cpu":
            asks[f"1 core of {device}"] = replace(ask, cores=(ask.cores or on.device.lanes) + 1)
        else:
            asks[f"1 {device}"] = replace(ask, copies={**ask.copies, device: ask.copies.get(device, 1) + 1})
    for place, budget in problem.budget.items():
        used = place != "disk" or any(problem.options[i].tier == "disk" for i in choice.options)
        if budget is not None and used:
            asks[f"{size(MORE_BYTES)} of {place}"] = replace(
                ask, memory={**ask.memory, place: int(budget) + MORE_BYTES}
            )
    found = []
    for what, other in asks.items():
        if (then := others(other)) is not None:
            correct, rows = then.correct - choice.correct, then.rows - choice.rows
            telling = abs(correct) > TELLING * choice.correct
            found.append(
                More(
                    what=what, correct_per_s=correct if telling else 0.0, rows_per_s=rows if telling else 0.0
                )
            )
    return tuple(sorted(found, key=lambda m: -m.correct_per_s))


def _cost(problem: Problem, devices: list[str], rows_per_s: float) -> float | None:
    """Of a million predictions, in the unit of the devices' prices; the host reads requests, so it is
    always paid for. None without prices."""
    used = dict.fromkeys([*devices, *([problem.host] if problem.host else [])])
    prices = [problem.machine.device(name).price_per_hour for name in used]
    if not rows_per_s or any(p is None for p in prices):
        return None
    hourly = sum(
        p * problem.ask.copies.get(name, 1) for name, p in zip(used, prices, strict=True) if p is not None
    )
    return hourly / 3600 / rows_per_s * 1e6
