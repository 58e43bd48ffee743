from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.deployment.solver.choice import (
    add_reserve,
    choose,
    fits,
    without_memory_limit,
    without_time_limit,
)
from polyrec.planner.deployment.solver.problem import Problem, build_problem
from polyrec.planner.deployment.solver.program import TIE, PlanImpossible
from polyrec.planner.profile import Front
from polyrec.planner.traffic import Arrivals, Sizes, Traffic
from tests.planner.planning import machine, path, profile, skewed, traffic

FREE = Front(query_s=0.0, row_s=0.0)


def deployments(problem: Problem) -> Iterator[tuple[Option, ...]]:
    """Every deployment: each path left out or in one of its options."""
    by_path: dict[int, list[Option | None]] = {}
    for option in problem.options:
        by_path.setdefault(option.path, [None]).append(option)
    for chosen in product(*by_path.values()):
        yield tuple(o for o in chosen if o is not None)


def bytes_of(problem: Problem, chosen: Sequence[Option]) -> dict[str, float]:
    """Bytes by memory: rows and cache once per bundle and device, fixed parts per path, buffers per lane."""
    used: dict[str, float] = {}
    for device, on in problem.lanes.items():
        own = [o for o in chosen if problem.paths[o.path].path.device == device]
        rows = {o.group: 0.0 for o in own}
        for o in own:
            rows[o.group] = max(rows[o.group], o.resident + o.cache)
        peak = max((problem.paths[o.path].memory.peak for o in own), default=0)
        used[device] = (
            sum(rows.values()) + sum(problem.paths[o.path].memory.fixed for o in own) + on.count * peak
        )
    for tier, place in (("host", problem.host), ("disk", "disk")):
        copies: dict[str, float] = {}
        for o in chosen:
            if o.tier == tier:
                bundle = str(problem.paths[o.path].path.bundle)
                # the file of the disk has the rows in memory, too; what is remote takes no room here
                size = o.next_tier_bytes + (o.resident if tier == "disk" and o.next_tier_bytes else 0.0)
                copies[bundle] = max(copies.get(bundle, 0.0), size)
        for o in chosen:
            p = problem.paths[o.path].path
            if tier == "host" and p.device == place and o.tier is None:
                copies.pop(str(p.bundle), None)
        assert place is not None
        used[place] = used.get(place, 0.0) + sum(copies.values())
    return used


def most_correct(problem: Problem, chosen: Sequence[Option]) -> float:
    """Correct predictions a second that a deployment can give: a small linear program a level of load."""
    total = 0.0
    places = [*problem.capacity, *([] if problem.inline else ["front"])]
    for level in problem.levels:
        gain, rows, limits, columns = [], [], [], []
        for o in chosen:
            for c, one in enumerate(problem.classes):
                if np.isfinite(o.cost_s[c]):
                    columns.append((o, c))
                    gain.append(problem.paths[o.path].quality * one.rows)
        for c, one in enumerate(problem.classes):
            rows.append([float(other == c) for _, other in columns])
            limits.append(level.rate * one.share)
        for place in places:
            spent = []
            for o, c in columns:
                on_device = problem.paths[o.path].path.device == place
                reading = place == "front" or place == problem.inline
                spent.append((o.cost_s[c] if on_device else 0.0) + (problem.front_s[c] if reading else 0.0))
            rows.append(spent)
            limits.append(1.0 if place == "front" else float(problem.capacity[place] or 0.0))
        if columns:
            found = linprog(-np.array(gain), A_ub=np.array(rows), b_ub=np.array(limits), method="highs")
            total -= level.share * found.fun
    return total


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Small ones, of every kind: shared bundles, tight memories, tiers below, fronts, bursts."""
    gpu = draw(st.booleans())
    names = [f"{r}@{d}" for r in ("table", "dhe") for d in ("cpu", *(["cuda:0"] if gpu else []))]
    paths, tables = [], []
    slow = draw(st.sampled_from([2e-6, 1e-5, 3e-5]))
    for name in draw(st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True)):
        table = name.startswith("table")
        rows = 1_000_000 if table else 50_000
        paths.append(
            path(
                name,
                quality=draw(st.sampled_from([0.75, 0.79] if table else [0.79, 0.8, 0.81])),
                fixed_s=draw(st.sampled_from([2e-5, 3e-4])),
                row_s=slow * draw(st.sampled_from([0.2, 0.5] if table else [0.5, 1.0])),
                tables={"t": rows},
                fixed=draw(st.sampled_from([0, 200_000, 500_000])),
                peak=draw(st.sampled_from([0, 100_000, 300_000])),
            )
        )
        tables.append(draw(st.sampled_from([None, skewed(rows // 1000, lookups=3.0)])))
    # budgets around what everything would take, so that they often bind
    needs = {d: sum(p.memory.total for p in paths if p.path.device == d) for d in ("cpu", "cuda:0")}
    tight = st.sampled_from([0.4, 0.6, 0.8, 0.95, 1.05])
    on = machine(
        cores=draw(st.sampled_from([1, 2, 4])),
        memory=int(draw(tight) * (needs["cpu"] or 800_000)),
        gpu=int(draw(tight) * (needs["cuda:0"] or 800_000)) if gpu else None,
        disk=draw(st.booleans()),
        remote=draw(st.sampled_from([None, "redis://store"])),
    )
    # about what is to lie there, so that it often binds
    disk_bytes = draw(st.sampled_from([None, 0.3, 0.6, 0.9]))
    requirements = Requirements(
        slo_s=draw(st.sampled_from([0.004, 0.02])),
        traffic=Traffic(
            # around what the slowest path can do
            rate=draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])) / (60 * slow),
            sizes=draw(st.sampled_from([Sizes(mean=20), Sizes(kind="measured", values=(5, 60, 300))])),
            arrivals=draw(st.sampled_from([Arrivals(), Arrivals(kind="bursty", factor=4)])),
        ),
        lane=draw(st.sampled_from([None, "inline", "process"])),
        memory={} if disk_bytes is None else {"disk": int(disk_bytes * (needs["cpu"] or 800_000))},
    )
    front = draw(st.sampled_from([FREE, Front(query_s=5e-5, row_s=1e-6)]))
    posed = build_problem(profile(*paths, on=on, front=front), requirements, tables)
    kept = draw(st.sets(st.integers(0, 30), min_size=1, max_size=2))
    options = []
    for i in range(len(paths)):
        own = [o for o in posed.options if o.path == i]
        options += [o for n, o in enumerate(own) if n in kept or n == 0]
    return replace(posed, options=tuple(options))


@settings(max_examples=100)
@given(problems())
def test_the_plan_is_as_good_as_exhaustive_search(problem: Problem) -> None:
    best = 0.0
    for chosen in deployments(problem):
        within = all(
            (budget := problem.budget[place]) is None or used <= budget
            for place, used in bytes_of(problem, chosen).items()
        )
        if within:
            best = max(best, most_correct(problem, chosen))
    try:
        choice = choose(problem)
    except PlanImpossible:
        assert best == 0.0
        return
    offered = sum(
        level.rate * level.share * c.share * c.rows for level in problem.levels for c in problem.classes
    )
    # ties are broken by less time and fewer paths, worth a millionth each
    allowed = TIE * offered * (len(problem.options) + len(problem.lanes))
    assert best - allowed <= choice.value <= best * (1 + 1e-7) + 1e-9
    assert fits(problem, choice.options)


@settings(max_examples=25)
@given(problems())
def test_load_is_shared_within_all_limits(problem: Problem) -> None:
    try:
        choice = choose(problem)
    except PlanImpossible:
        return
    assert (choice.served >= -1e-9).all()
    assert (choice.served.sum(axis=0) <= 1 + 1e-7).all()
    for s in range(len(problem.levels)):
        spent = dict.fromkeys(problem.capacity, 0.0)
        front = 0.0
        for k, i in enumerate(choice.options):
            option = problem.options[i]
            queries = choice.served[k, :, s] * problem.queries[:, s]
            used = queries > 0
            assert np.isfinite(option.cost_s[used]).all()
            spent[problem.paths[option.path].path.device] += float(
                (queries[used] * option.cost_s[used]).sum()
            )
            front += float((queries * problem.front_s).sum())
        if problem.inline:
            spent[problem.inline] += front
        else:
            assert front <= 1 + 1e-6
        for device, seconds in spent.items():
            assert seconds <= (problem.capacity[device] or 0.0) * (1 + 1e-6)


def test_at_little_load_the_most_accurate_path_serves_all_and_time_costs_nothing() -> None:
    good, fast = path("hybrid@cpu", quality=0.81, row_s=1e-5), path("table@cpu", quality=0.8)
    problem = build_problem(profile(fast, good), Requirements(0.01, traffic(10)), (None, None))
    choice = choose(problem)
    assert [problem.paths[problem.options[i].path].path.name for i in choice.options] == ["hybrid@cpu"]
    assert choice.value == pytest.approx(10 * 20 * 0.81)
    assert choice.prices == {"cpu": pytest.approx(0.0, abs=1e-3)}


def test_the_price_of_time_is_the_gain_of_a_little_more() -> None:
    good, fast = path("hybrid@cpu", quality=0.81, row_s=1e-5), path("table@cpu", quality=0.8)
    problem = build_problem(
        profile(fast, good), Requirements(0.01, traffic(6000), lane="process"), (None, None)
    )
    choice = choose(problem)
    more = replace(problem, capacity={"cpu": (problem.capacity["cpu"] or 0.0) + 1e-3})
    assert choice.prices["cpu"] > 0
    assert choose(more).value - choice.value == pytest.approx(1e-3 * choice.prices["cpu"], rel=0.01)


def test_a_bundle_is_held_once_by_paths_that_share_it() -> None:
    paths = [
        path("table@cpu", quality=0.8, bundle="/b", row_s=1e-6),
        path("table.int8@cpu", quality=0.799, bundle="/b", row_s=5e-7),
    ]
    apart = [paths[0], path("table.int8@cpu", quality=0.799, bundle="/c", row_s=5e-7)]
    requirements = Requirements(0.01, traffic(20_000), memory={"cpu": 1_200_000}, lane="process")
    together, separate = (
        build_problem(profile(*p, on=machine(cores=2)), requirements, (None, None)) for p in (paths, apart)
    )
    assert fits(together, [0, 1])
    assert not fits(separate, [0, 1])


def test_a_reserve_is_kept_in_memory_that_is_left_and_nowhere_else() -> None:
    good, fast = path("hybrid@cpu", quality=0.81, row_s=2e-5), path("table@cpu", quality=0.8)
    for memory, expected in ((10**9, {"hybrid@cpu", "table@cpu"}), (1_500_000, {"hybrid@cpu"})):
        problem = build_problem(
            profile(fast, good), Requirements(0.01, traffic(1000), {"cpu": memory}), (None, None)
        )
        choice = add_reserve(problem, choose(problem))
        assert {problem.paths[problem.options[i].path].path.name for i in choice.options} == expected
        assert choice.served[1:].sum() == 0.0


def test_when_the_load_falls_a_more_accurate_path_is_in_reserve() -> None:
    good, fast = path("hybrid@cpu", quality=0.81, row_s=2e-5), path("table@cpu", quality=0.8)
    problem = build_problem(profile(fast, good), Requirements(0.01, traffic(60_000)), (None, None))
    choice = choose(problem)
    assert [problem.paths[problem.options[i].path].path.name for i in choice.options] == ["table@cpu"]
    still = replace(problem, requirements=replace(problem.requirements, swing=1.0))
    assert add_reserve(still, choice).options == choice.options
    assert len(add_reserve(problem, choice).options) == 2


def test_an_unlimited_resource_does_not_bind() -> None:
    good, small = path("table@cpu", quality=0.81), path("dhe@cpu", quality=0.7, tables={"t": 1000})
    requirements = Requirements(0.01, traffic(200), memory={"cpu": 500_000})
    problem = build_problem(profile(good, small), requirements, (None, None))
    assert choose(problem).value == pytest.approx(200 * 20 * 0.7)
    assert choose(without_memory_limit(problem, "cpu")).value == pytest.approx(200 * 20 * 0.81)
    busy = build_problem(profile(good), Requirements(0.01, traffic(100_000)), (None,))
    assert choose(busy).rows < 100_000 * 20
    assert choose(without_time_limit(busy, "cpu")).rows == pytest.approx(100_000 * 20)


def test_rows_that_do_not_fit_go_to_disk_but_the_hottest() -> None:
    table = path("table@cpu", quality=0.81, tables={"t": 1_000_000})
    tables: list[Tables | None] = [skewed(1000)]
    requirements = Requirements(0.05, traffic(20), memory={"cpu": 500_000})
    problem = build_problem(profile(table, on=machine(disk=True)), requirements, tables)
    (index,) = choose(problem).options
    option = problem.options[index]
    assert option.tier == "disk"
    assert option.resident <= 500_000
    assert option.lookups > 0.8


def test_rows_that_the_host_holds_for_itself_serve_a_gpu_without_a_second_copy() -> None:
    tables = {"t": 1_000_000}
    cpu = path("table@cpu", quality=0.8, tables=tables, fixed=0, row_s=2e-5)
    gpu = path("table@cuda:0", quality=0.8, tables=tables, fixed=0, row_s=1e-6)
    other = path("other@cuda:0", quality=0.8, tables=tables, fixed=0, row_s=1e-6)
    on = machine(cores=4, memory=1_000_000, gpu=400_000)
    requirements = Requirements(0.02, traffic(1e6))
    shared = build_problem(profile(cpu, gpu, on=on), requirements, (skewed(1000),) * 2)
    apart = build_problem(profile(cpu, other, on=on), requirements, (skewed(1000),) * 2)
    deployed = {shared.paths[shared.options[i].path].path.name for i in choose(shared).options}
    assert deployed == {"table@cpu", "table@cuda:0"}
    assert len(choose(apart).options) == 1
