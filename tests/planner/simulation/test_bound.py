"""The clairvoyant bound: above every schedule of tiny traces, and every policy on random ones."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.bound import bound
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes
from tests.planner.routing.servers import BOTH, CPU, GPU_LANE, POLICIES, cpu_lanes


def groupings(order: tuple[int, ...]):
    """All ways to cut a sequence into consecutive batches."""
    if not order:
        yield ()
        return
    for first in range(1, len(order) + 1):
        for rest in groupings(order[first:]):
            yield (order[:first], *rest)


def best_schedule(paths, arrival, rows, deadline) -> float:
    """The best by exhaustive search over orders, groups and paths on one lane, for whole queries."""
    best = 0.0
    n = len(arrival)
    for order in (o for k in range(n + 1) for o in permutations(range(n), k)):
        for batches in groupings(order):
            for chosen in product(paths, repeat=len(batches)):
                now, value = 0.0, 0.0
                for batch, path in zip(batches, chosen, strict=True):
                    now = max(now, *(arrival[i] for i in batch))
                    now += path.latency.median(sum(rows[i] for i in batch))
                    value += sum(path.quality * rows[i] for i in batch if now <= deadline[i])
                best = max(best, value)
    return best


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.floats(0, 4e-3), min_size=1, max_size=3),
    rows=st.lists(st.integers(1, 400), min_size=3, max_size=3),
    budget_s=st.floats(5e-4, 8e-3),
    bins=st.integers(1, 9),
)
def test_above_the_best_of_all_schedules_of_a_tiny_trace(gaps, rows, budget_s, bins):
    arrival = np.cumsum(gaps)
    sizes = np.asarray(rows[: arrival.size], np.int64)
    exact = best_schedule(CPU, arrival, sizes, arrival + budget_s)
    found = bound(Trace(CPU, Limits(), arrival, sizes, budget_s), cpu_lanes(1), bin_s=budget_s / bins)
    assert found.information >= exact - 1e-6
    assert found.information <= 0.79 * sizes.sum() + 1e-6


def quiet(path: PathSpec) -> PathSpec:
    """Without noise: medians are what the bound charges."""
    model = path.latency
    return PathSpec(
        path.name,
        path.device,
        path.quality,
        LatencyModel(rows=model.rows, median_s=model.median_s, tail_s=model.median_s),
    )


@settings(max_examples=25, deadline=None)
@given(
    server=st.sampled_from([(CPU, cpu_lanes(2)), (BOTH, (GPU_LANE, *cpu_lanes(1)))]),
    policy=st.sampled_from(POLICIES),
    kind=st.sampled_from(["poisson", "bursty"]),
    rate=st.floats(100, 8000),
    budget_s=st.floats(2e-3, 3e-2),
    seed=st.integers(0, 1000),
)
def test_above_every_policy_on_random_traces(server, policy, kind, rate, budget_s, seed):
    rng = np.random.default_rng(seed)
    arrivals = Arrivals(kind=kind, factor=6, period_s=0.1, burst_s=0.02)
    times = arrival_times(arrivals, rate, 0.25, rng)
    rows = Sizes(kind="heavy", mean=100).sample(times.size, rng)
    paths, lanes = tuple(quiet(p) for p in server[0]), server[1]
    trace = Trace(paths, Limits(), times, rows, budget_s)
    outcomes = Simulator(trace, lanes, Routing(policy=policy), rng).run()
    found = bound(trace, lanes)
    assert found.information >= outcomes.information.sum() - 1e-6


def test_at_low_load_it_is_every_row_on_the_most_accurate_path():
    times = np.arange(20) * 0.05
    rows = np.full(20, 100)
    assert bound(Trace(CPU, Limits(), times, rows, 0.02), cpu_lanes(1)).information == pytest.approx(
        0.79 * 2000
    )


def test_overload_is_limited_by_the_lanes():
    rng = np.random.default_rng(0)
    times = np.sort(rng.random(4000)) * 0.2
    rows = np.full(4000, 100)
    found = bound(Trace(CPU, Limits(), times, rows, 0.01), cpu_lanes(1))
    # A row costs 4 us and a 1,024th of 50 us on the fastest path.
    assert found.rows <= (0.2 + 0.0125) / 4.05e-6
    assert found.rows == pytest.approx(0.2 / 4.05e-6, rel=0.1)


def test_a_fixed_cost_weighs_where_few_queries_meet():
    """One query at a time pays its batch's fixed cost alone; ten at a time share it."""
    path = PathSpec(
        "table@cpu", "cpu", 0.8, LatencyModel(rows=(1, 1000), median_s=(1e-3, 1.1e-3), tail_s=(1e-3, 1.1e-3))
    )
    sparse = np.arange(100) * 0.9e-3
    crowded = np.repeat(np.arange(10) * 9e-3, 10)
    one, many = (
        bound(Trace((path,), Limits(), times, np.full(100, 10), 1.5e-3), cpu_lanes(1))
        for times in (sparse, crowded)
    )
    assert one.information < 0.97 * 800
    assert many.information == pytest.approx(800)


def test_rows_are_in_no_larger_batch_than_the_limit():
    """All come at once; only a batch of all of them would be in time."""
    path = PathSpec(
        "table@cpu", "cpu", 0.8, LatencyModel(rows=(1, 4096), median_s=(1e-3, 2e-3), tail_s=(1e-3, 2e-3))
    )
    times, rows = np.zeros(178), np.full(178, 23)
    assert Limits().max_batch_rows < rows.sum() / 2
    found = bound(Trace((path,), Limits(), times, rows, 2.1e-3), cpu_lanes(1))
    whole = bound(Trace((path,), Limits(max_batch_rows=4096), times, rows, 2.1e-3), cpu_lanes(1))
    assert whole.information == pytest.approx(0.8 * rows.sum())
    assert found.information < 0.6 * whole.information


def test_a_query_larger_than_a_batch_is_executed_alone():
    """Its rows cost less than in batches of the limit, four of which would be late."""
    path = PathSpec(
        "table@cpu", "cpu", 0.8, LatencyModel(rows=(1, 4096), median_s=(1e-3, 2e-3), tail_s=(1e-3, 2e-3))
    )
    found = bound(Trace((path,), Limits(), np.zeros(1), np.array([4096]), 2.1e-3), cpu_lanes(1))
    assert found.information == pytest.approx(0.8 * 4096)


def test_no_traffic_is_no_prediction():
    assert (
        bound(Trace(CPU, Limits(), np.zeros(0), np.zeros(0, np.int64), 0.01), cpu_lanes(1)).information == 0
    )
