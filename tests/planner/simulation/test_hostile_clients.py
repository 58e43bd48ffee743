"""Clients choose rows and budgets: what one sends takes from the others no more than the time it uses."""

from __future__ import annotations

import numpy as np
import pytest

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import LaneKind, Limits, Routing
from polyrec.planner.simulation.outcomes import Outcomes
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes
from tests.planner.routing.servers import cpu_lanes
from tests.planner.simulation.test_disturbance import BEST, BUDGET_S, PATHS, WARM

BEGIN_S, END_S = 3.0, 6.0


def beside(
    kind: LaneKind, rate: float, hostile_rate: float, rows: int, budget_s: float, until_s: float
) -> tuple[Outcomes, np.ndarray]:
    """One server under Poisson arrivals of about 25 rows, and a hostile client for a while.

    Returns the outcomes, and which of them are of ordinary clients.
    """
    rng = np.random.default_rng(0)
    ordinary_s = arrival_times(Arrivals(), rate, until_s, rng)
    ordinary_rows = Sizes(kind="lognormal", mean=25).sample(ordinary_s.size, rng)
    hostile_s = BEGIN_S + np.arange(int(hostile_rate * (END_S - BEGIN_S))) / hostile_rate
    times = np.concatenate([ordinary_s, hostile_s])
    order = np.argsort(times, kind="stable")
    sizes = np.concatenate([ordinary_rows, np.full(hostile_s.size, rows)])[order]
    is_ordinary = (np.arange(times.size) < ordinary_s.size)[order]
    budgets = np.where(is_ordinary, BUDGET_S, budget_s)
    lanes = cpu_lanes(1 if kind == "inline" else 2, kind)
    sim = Simulator(Trace(PATHS, Limits(), times[order], sizes, budgets), lanes, Routing(), rng, costs=WARM)
    return sim.run(), is_ordinary


@pytest.mark.parametrize("kind", ["inline", "process"])
@pytest.mark.parametrize(
    ("rate", "hostile_rate", "rows", "budget_s"),
    [
        (50, 10, 1, 2e-4),
        (50, 1000, 1, 1e-6),
        (50, 10, 4096, 1e-3),
        (700, 1000, 1, 1e-6),
        (700, 200, 4096, 1e-3),
    ],
)
def test_requests_with_impossible_budgets_cost_others_neither_answers_nor_quality(
    kind, rate, hostile_rate, rows, budget_s
):
    outcomes, is_ordinary = beside(kind, rate, hostile_rate, rows, budget_s, END_S + 3)
    ordinary = is_ordinary & (outcomes.arrival_s >= 1)
    in_time = (outcomes.path >= 0) & (outcomes.finish_s <= outcomes.deadline_s)
    attacked = ordinary & (outcomes.arrival_s >= BEGIN_S)
    before = ordinary & ~attacked
    assert not in_time[~is_ordinary].any()
    assert in_time[attacked].mean() >= 0.999
    usual = (outcomes.path[before] == BEST).mean()
    assert usual > 0.8
    assert (outcomes.path[attacked] == BEST).mean() >= usual - 0.1


@pytest.mark.parametrize("kind", ["inline", "process"])
@pytest.mark.parametrize(
    ("rate", "rows", "budget_s"),
    [(50, 1, 6e-4), (300, 1, 7.5e-4), (300, 200, 2.4e-3), (700, 1, 7.5e-4), (700, 25, 9e-4), (700, 1, 3e-3)],
)
def test_requests_with_budgets_that_are_only_just_possible_cost_others_neither_answers_nor_quality(
    kind, rate, rows, budget_s
):
    outcomes, is_ordinary = beside(kind, rate, 10, rows, budget_s, END_S + 1)
    ordinary = is_ordinary & (outcomes.arrival_s >= 1)
    in_time = (outcomes.path >= 0) & (outcomes.finish_s <= outcomes.deadline_s)
    attacked = ordinary & (outcomes.arrival_s >= BEGIN_S) & (outcomes.arrival_s < END_S)
    before = ordinary & (outcomes.arrival_s < BEGIN_S)
    assert in_time[attacked].mean() >= 0.999
    usual = (outcomes.path[before] == BEST).mean()
    assert usual > 0.7
    assert (outcomes.path[attacked] == BEST).mean() >= usual - 0.1


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_large_requests_are_forgotten_soon_after_they_end(kind):
    outcomes, is_ordinary = beside(kind, 20, 20, 4096, 10.0, END_S + 20)
    later = is_ordinary & (outcomes.arrival_s > END_S + 7)
    assert (outcomes.path[later] == BEST).mean() >= 0.95


@pytest.mark.parametrize("kind", ["inline", "process"])
@pytest.mark.parametrize(("rate", "rows", "budget_s"), [(50, 2000, 0.1), (50, 2000, 1.0), (300, 2000, 0.1)])
def test_large_requests_with_ample_time_cost_others_neither_answers_nor_quality(kind, rate, rows, budget_s):
    outcomes, is_ordinary = beside(kind, rate, 10, rows, budget_s, END_S + 1)
    ordinary = is_ordinary & (outcomes.arrival_s >= 1)
    in_time = (outcomes.path >= 0) & (outcomes.finish_s <= outcomes.deadline_s)
    attacked = ordinary & (outcomes.arrival_s >= BEGIN_S) & (outcomes.arrival_s < END_S)
    usual = (outcomes.path[ordinary & (outcomes.arrival_s < BEGIN_S)] == BEST).mean()
    assert in_time[~is_ordinary].all()
    assert in_time[attacked].all()
    assert (outcomes.path[attacked] == BEST).mean() >= usual - 0.1


def test_large_requests_that_nearly_fill_the_queue_are_not_lost_to_better_paths_of_others():
    """At random moments four of them fill it, however much time they have."""

    def in_time(policy: str, seed: int) -> float:
        rng = np.random.default_rng(seed)
        ordinary_s, large_s = (arrival_times(Arrivals(), rate, 6.0, rng) for rate in (300, 30))
        ordinary_rows = Sizes(kind="lognormal", mean=25).sample(ordinary_s.size, rng)
        order = np.argsort(times := np.concatenate([ordinary_s, large_s]))
        rows = np.concatenate([ordinary_rows, np.full(large_s.size, 4096)])[order]
        budgets = np.where(order < ordinary_s.size, BUDGET_S, 10.0)
        lanes, routing = cpu_lanes(1, "inline"), Routing(policy=policy)
        trace = Trace(PATHS, Limits(), times[order], rows, budgets)
        outcomes = Simulator(trace, lanes, routing, rng, costs=WARM).run()
        return float(((outcomes.path >= 0) & (outcomes.finish_s <= outcomes.deadline_s))[rows == 4096].mean())

    fastest, own = (
        np.mean([in_time(policy, seed) for seed in range(5)])
        for policy in ("static:table.int8@cpu", "priced")
    )
    assert own >= fastest - 0.02


def test_a_few_rows_with_endless_time_hide_no_overload():
    """Their deadline is the last of the queue, by which there seems to be time for all that waits."""

    def in_time(hostile_rate: int, seed: int) -> float:
        rng = np.random.default_rng(seed)
        ordinary_s = arrival_times(Arrivals(), 3000, 3.0, rng)
        hostile_s = np.arange(3 * hostile_rate) / max(hostile_rate, 1)
        order = np.argsort(times := np.concatenate([ordinary_s, hostile_s]), kind="stable")
        is_ordinary = order < ordinary_s.size
        rows, budgets = np.where(is_ordinary, 100, 1), np.where(is_ordinary, BUDGET_S, 60.0)
        lanes = cpu_lanes(1, "inline")
        trace = Trace(PATHS, Limits(), times[order], rows, budgets)
        outcomes = Simulator(trace, lanes, Routing(), rng, costs=WARM).run()
        late = (outcomes.path < 0) | (outcomes.finish_s > outcomes.deadline_s)
        return float(1 - late[is_ordinary & (outcomes.arrival_s >= 1)].mean())

    alone, beside_it = (np.mean([in_time(rate, seed) for seed in range(4)]) for rate in (0, 50))
    assert beside_it >= 0.98 * alone, (beside_it, alone)
