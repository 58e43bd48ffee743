"""MP-Rec's greedy rule: a query is bound when it arrives, by what is bound already."""

import pytest

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.query import Query
from tests.planner.routing.servers import BOTH, GPU_LANE, RouterDriver, cpu_lanes, router


def test_queries_are_bound_at_arrival_by_quality_then_by_speed():
    driver = RouterDriver(router(policy="mprec", lanes=cpu_lanes(1)))
    queries = [driver.submit(147, 0.01) for _ in range(12)]
    names = [driver.router.state.path_specs[q.path].name for q in queries]
    assert names[0] == "hybrid@cpu"
    assert names[-1] == "table@cpu"
    # Nothing is rejection, even far beyond what can be made.
    for _ in range(60):
        driver.submit(147, 0.01)
    assert not any(ends for ends in driver.ends.values())


def test_queries_are_bound_to_the_fastest_path_when_what_waits_fills_the_budget():
    wide, narrow = (
        PathSpec(name, "cpu", quality, LatencyModel(rows=(1, 256), median_s=curve, tail_s=curve))
        for name, quality, curve in (("wide@cpu", 0.9, (1e-5, 3e-3)), ("narrow@cpu", 0.8, (2e-5, 2e-4)))
    )
    driver = RouterDriver(router((wide, narrow), cpu_lanes(1), policy="mprec"))
    queries = [Query(23, 0.0, 0.010) for _ in range(400)]
    for query in queries:
        driver.router.submit(query, 0.0)
    assert queries[0].path == 0
    # the efficient batches of the wide path are small, and so soon done, but worse a row
    assert {query.path for query in queries[-100:]} == {1}


def test_queries_are_bound_again_when_a_device_is_lost():
    driver = RouterDriver(router(BOTH, (GPU_LANE, *cpu_lanes(2)), policy="mprec"))
    driver.router.lane_down(1)
    driver.router.lane_down(2)
    query = driver.submit(147, 0.05)
    assert driver.router.state.path_specs[query.path].device == "cuda:0"
    driver.router.lane_up(1, 0.0)
    driver.router.lane_down(0)
    driver.run(0.05)
    assert driver.ends[query] == ["answered"]
    assert driver.router.state.path_specs[query.path].device == "cpu"


@pytest.mark.parametrize("now_s", [0.0, 1000.0])
def test_a_budget_too_short_for_the_best_path_binds_to_a_faster_one_at_any_time(now_s):
    driver = RouterDriver(router(policy="mprec"), now_s)
    ample, short = driver.submit(23, 0.1), driver.submit(23, 0.0006)
    assert driver.router.state.path_specs[ample.path].name == "hybrid@cpu"
    assert driver.router.state.path_specs[short.path].name == "table@cpu"


def test_required_quality_binds_to_the_best_path_whatever_waits():
    driver = RouterDriver(router(policy="mprec", lanes=cpu_lanes(1)))
    waiting = [driver.submit(147, 0.01) for _ in range(20)]
    best_only = driver.submit(147, 0.01, best_only=True)
    assert driver.router.state.path_specs[waiting[-1].path].name == "table@cpu"
    assert driver.router.state.path_specs[best_only.path].name == "hybrid@cpu"


def test_queries_that_expired_in_the_queue_leave_nothing_behind_that_later_ones_wait_for():
    driver = RouterDriver(router(policy="mprec", lanes=cpu_lanes(1)))
    flood = [driver.submit(147, 0.01) for _ in range(200)]
    driver.run(0.1)
    assert ["expired"] in [driver.ends[query] for query in flood]
    later = driver.submit(147, 0.01)
    assert driver.router.state.path_specs[later.path].name == "hybrid@cpu"


def test_equally_fast_paths_bind_the_one_of_better_quality():
    fast = LatencyModel(rows=(1, 256), median_s=(1e-3, 2e-3), tail_s=(1e-3, 2e-3))
    paths = [PathSpec(f"{name}@cpu", "cpu", quality, fast) for name, quality in (("a", 0.8), ("b", 0.9))]
    for order in (paths, paths[::-1]):
        driver = RouterDriver(router(tuple(order), cpu_lanes(1), policy="mprec"))
        query = driver.submit(23, 1e-4)
        assert driver.router.state.path_specs[query.path].name == "b@cpu"
