"""Makes a plan from a profile and `Requirements`: builds the problem, solves it, fills memory, forecasts.

`polyrec plan` calls it. The result is a `Plan` that a server can open, with the placement of every row and a
forecast. Raises PlanImpossible, which names what is missing and how much of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from polyrec.models.amounts import ms, size
from polyrec.models.bundle.manifest import Manifest, read_manifest
from polyrec.models.errors import BundleError
from polyrec.planner.deployment.bundle_contents import read_tables, require_shared_ids
from polyrec.planner.deployment.forecast import forecast
from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.deployment.solver.choice import Choice, add_reserve, choose, share_load
from polyrec.planner.deployment.solver.problem import Problem, build_problem
from polyrec.planner.deployment.solver.program import PlanImpossible
from polyrec.planner.deployment.spare_memory import fill_spare_memory, make_placement
from polyrec.planner.deployment.tier_cost import tiers_below
from polyrec.planner.plan import LaneKind, Limits, Plan, PlannedLane, PlannedPath, Routing
from polyrec.planner.profile import PathProfile, Profile
from polyrec.planner.quality import differences_of


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan with the problem and choice behind it, for charts and sweeps."""

    plan: Plan
    problem: Problem
    choice: Choice


def tables_of(paths: Sequence[PathProfile]) -> tuple[Tables | None, ...]:
    """Reads the stored rows of each path's bundle, once per bundle.

    None where a derived profile names a bundle that does not exist. Raises BundleError if the bundle of a
    measured path is missing, ProfileError if one plan cannot serve all bundles.
    """
    manifests: dict[Path, Manifest] = {}
    tables: dict[tuple[Path, tuple[tuple[str, int], ...]], Tables] = {}
    found: list[Tables | None] = []
    first_path: dict[Path, str] = {}
    for p in paths:
        folder = p.path.bundle
        key = (folder, tuple(p.memory.tables.items()))
        try:
            if folder not in manifests:
                manifests[folder] = read_manifest(folder)
            if key not in tables:
                tables[key] = read_tables(folder, manifests[folder], p.memory)
            found.append(tables[key])
            first_path.setdefault(folder, p.path.name)
        except BundleError as e:
            if p.origin == "measured":
                raise BundleError(f"path '{p.path.name}' of the profile: {e}") from None
            found.append(None)
    require_shared_ids({name: (folder, manifests[folder]) for folder, name in first_path.items()})
    return tuple(found)


def propose(
    profile: Profile,
    requirements: Requirements,
    tables: Sequence[Tables | None] | None = None,
    *,
    bounds: bool = True,
    more: bool = True,
) -> Proposal:
    """Returns the best plan.

    tables: from `tables_of`, to read them once for many plans. bounds: also plan without each limit, to find
    the bottlenecks. more: also plan with one more core, device or GB, to find the gain of upgrades. Raises
    PlanImpossible or BundleError.
    """
    tables = tables_of(profile.paths) if tables is None else tables
    problem, choice = _best_lanes(profile, requirements, tables)
    problem = fill_spare_memory(problem, choice)
    choice = add_reserve(problem, share_load(problem, list(choice.options), choice.gap))
    others = (lambda other: _chosen(profile, other, tables)) if more else None
    chosen = [problem.paths[problem.options[i].path].path.name for i in choice.options]
    plan = Plan(
        paths=tuple(_planned(problem, i) for i in choice.options),
        metric=profile.metric,
        differences=differences_of(chosen, profile.differences),
        lanes=_lanes(problem, choice),
        routing=Routing(query_s=problem.front.query_s, row_s=problem.front.row_s),
        default_budget_ms=1e3 * requirements.slo_s,
        limits=_limits(problem, choice),
        placement=make_placement(problem, choice),
        expected=forecast(problem, choice, bounds, others),
    )
    return Proposal(plan, problem, choice)


def _best_lanes(
    profile: Profile, requirements: Requirements, tables: Sequence[Tables | None]
) -> tuple[Problem, Choice]:
    """Returns the best of several lane layouts, the simplest of equals.

    Two cores can be an event loop that executes, or a loop and a process; an unused accelerator needs no core
    to feed it.
    """
    problem = build_problem(profile, requirements, tables)
    posed = [problem]
    if problem.inline is not None and requirements.lane is None:
        cores = requirements.cores or problem.lanes[problem.inline].device.lanes
        if cores > 1:
            posed.append(build_problem(profile, replace(requirements, lane="process"), tables))
    if requirements.lane is None and _overflows(problem):
        posed.append(build_problem(profile, replace(requirements, lane="thread"), tables))
    on_cpu = [i for i, p in enumerate(profile.paths) if problem.lanes[p.path.device].device.kind == "cpu"]
    if 0 < len(on_cpu) < len(profile.paths):
        own = profile.model_copy(update={"paths": tuple(profile.paths[i] for i in on_cpu)})
        posed.append(build_problem(own, requirements, [tables[i] for i in on_cpu]))
    found: list[tuple[Problem, Choice]] = []
    for one in posed:
        try:
            check_feasible(one)
            found.append((one, choose(one)))
        except PlanImpossible:
            continue
    if not found:
        check_feasible(problem)
        raise PlanImpossible("no path fits the memory given; give it more (--memory DEVICE=SIZE)")
    unit = max(found[0][1].value, 1e-300)
    return max(found, key=lambda f: round(f[1].value / unit, 6))


def _overflows(problem: Problem) -> bool:
    """Returns whether rows of CPU paths may need the disk, which lanes in processes cannot use."""
    device = problem.host
    if device is None or device not in problem.lanes:
        return False
    lanes, budget = problem.lanes[device], problem.budget[device]
    on_device = [p for p in problem.paths if p.path.device == device]
    rows = {str(p.path.bundle): sum(p.memory.tables.values()) for p in on_device}
    whole = sum(rows.values()) + sum(p.memory.fixed for p in on_device)
    below = bool(tiers_below(lanes.device, problem.machine))
    return below and lanes.kind == "process" and budget is not None and whole > budget


def _chosen(profile: Profile, requirements: Requirements, tables: Sequence[Tables | None]) -> Choice | None:
    """Returns the choice for other requirements; None if no plan meets them."""
    try:
        return _best_lanes(profile, requirements, tables)[1]
    except PlanImpossible:
        return None


def check_feasible(problem: Problem) -> None:
    """Raises PlanImpossible if no path meets the SLO, or none that does fits the memory."""
    requirements = problem.requirements
    if not problem.options:
        smallest = problem.classes[0].largest
        needed = []
        for i in range(len(problem.paths)):
            costing = problem.costing(i)
            tail = problem.paths[i].latency.tail(smallest)
            front = problem.front.query_s + problem.front.row_s * smallest
            needed.append((tail / costing.lanes.share + front, tail, front, i))
        total, tail, front, i = min(needed)
        rows = f"{smallest} {'row' if smallest == 1 else 'rows'}"
        parts = f"execution {ms(tail)}, waiting for a lane {ms(total - tail - front)}"
        raise PlanImpossible(
            f"no path answers {rows} (the smallest queries) within {ms(requirements.slo_s)}: the fastest, "
            f"{problem.paths[i].path.name}, needs {ms(total)} ({parts}, reading and writing {ms(front)}), "
            f"{ms(total - requirements.slo_s)} more"
        )
    short = []
    for option in problem.options:
        where = problem.fits_alone(option)
        if where is None:
            return
        needed_bytes, budget = problem.needs(option)[where], problem.budget[where]
        assert budget is not None
        short.append((needed_bytes - budget, needed_bytes, budget, where, option))
    lacking, needed_bytes, budget, where, option = min(short, key=lambda s: s[0])
    lanes = problem.lanes.get(where)
    has_disk = lanes is not None and bool(tiers_below(lanes.device, problem.machine))
    hint = ""
    if has_disk and requirements.lane == "process":
        hint = "; lanes in processes cannot have rows on disk: --lane thread can"
    raise PlanImpossible(
        f"no path that keeps {ms(requirements.slo_s)} fits the memory: the smallest, "
        f"{problem.paths[option.path].path.name}, needs {size(needed_bytes)} of {where}, which has "
        f"{size(budget)}; {size(lacking)} are missing{hint}"
    )


def _planned(problem: Problem, index: int) -> PlannedPath:
    option = problem.options[index]
    p = problem.paths[option.path]
    latency = p.latency if option.tier is None else option.timing.model()
    return p.path.model_copy(update={"quality": p.quality, "accuracy": p.accuracy, "latency": latency})


def _lanes(problem: Problem, choice: Choice) -> tuple[PlannedLane, ...]:
    options = [problem.options[i] for i in choice.options]
    used = dict.fromkeys(problem.paths[option.path].path.device for option in options)
    return tuple(
        PlannedLane(name=device if lanes.count == 1 else f"{device}.{n}", device=device, kind=kind)
        for device in used
        for lanes, kind in ((problem.lanes[device], _kind(problem, options, device)),)
        for n in range(lanes.count)
    )


def _kind(problem: Problem, options: Sequence[Option], device: str) -> LaneKind:
    """Returns the kind of a device's lanes: on an accelerator, processes, or threads if they need tiers.

    A process does not hold the event loop's interpreter lock (docs/results/gpu.md), and if an error makes a
    device's context unusable, only that process is restarted.
    """
    lanes = problem.lanes[device]
    tiered = any(o.cuts is not None for o in options if problem.paths[o.path].path.device == device)
    return lanes.kind if tiered or lanes.device.kind == "cpu" else "process"


def _limits(problem: Problem, choice: Choice) -> Limits:
    """Returns the limits: the largest batch within the SLO on any path, and a queue that drains within it."""
    usual = Limits()
    options = [problem.options[i] for i in choice.options]
    batch = max(o.batch_rows for o in options)
    within = 0.0
    for device, lanes in problem.lanes.items():
        rates = [
            o.batch_rows / o.timing.median(o.batch_rows)
            for o in options
            if problem.paths[o.path].path.device == device
        ]
        within += max(rates, default=0.0) * lanes.count * problem.requirements.slo_s
    largest = max(usual.max_request_rows, *(c.largest for c in problem.classes))
    return Limits(
        max_request_rows=largest,
        max_batch_rows=max(batch, *(int(np.ceil(c.rows)) for c in problem.classes)),
        max_queued_rows=max(largest, int(within)),
    )
