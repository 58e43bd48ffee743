"""Policies: each by its own rule, and the default ahead of the others."""

import numpy as np
import pytest

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Limits, PlanError, Routing
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.policies.deeprecsys import DeepRecSys
from polyrec.planner.routing.policies.mprec import MPRec
from polyrec.planner.routing.policies.registry import make_policy
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.simulation.simulator import Simulator, information
from polyrec.planner.traffic import Arrivals, Sizes
from tests.planner.routing.servers import BOTH, CPU, GPU_LANE, POLICIES, RouterDriver, cpu_lanes, router

SERVERS = {"cpu": (CPU, cpu_lanes(2)), "gpu": (BOTH, (GPU_LANE, *cpu_lanes(2)))}
LIMITS = Limits(max_batch_rows=1024)


def share(server: str, policy: str, rate: float, seed: int = 0, arrivals: Arrivals | None = None) -> float:
    """Correct predictions within deadlines, of those at most possible, once the rate is known."""
    rng = np.random.default_rng(seed)
    times = arrival_times(arrivals or Arrivals(), rate, 0.7 if server == "cpu" else 0.35, rng)
    rows = Sizes(kind="lognormal", mean=100).sample(times.size, rng)
    outcomes = Simulator(*SERVERS[server], Routing(policy=policy), LIMITS, times, rows, 0.01, rng).run()
    late = times >= times[-1] / 2
    return float(information(outcomes)[late].sum() / (0.79 * rows[late].sum()))


@pytest.mark.parametrize(("server", "full"), [("cpu", 4700.0), ("gpu", 12_000.0)])
@pytest.mark.parametrize("load", [0.05, 0.5, 1.3])
def test_the_default_policy_is_at_least_as_good_as_any_other_at_any_load(server, full, load):
    policies = POLICIES if server == "cpu" else (*POLICIES, "static:table@cuda:0", "static:hybrid@cuda:0")
    shares = {policy: share(server, policy, load * full) for policy in policies}
    assert shares["priced"] >= max(shares.values()) - 0.004


def test_the_default_keeps_goodput_through_bursts():
    arrivals = Arrivals(kind="bursty", factor=4, period_s=0.1, burst_s=0.02)
    priced, table = (
        np.mean([share("cpu", p, 2500, seed, arrivals) for seed in range(1, 5)])
        for p in ("priced", "static:table@cpu")
    )
    assert priced >= table - 0.003


def test_mprec_binds_at_arrival_by_quality_then_by_speed():
    driver = RouterDriver(router(policy="mprec", lanes=cpu_lanes(1)))
    queries = [driver.offer(147, 0.01) for _ in range(12)]
    names = [driver.router.paths[q.path].name for q in queries]
    assert names[0] == "hybrid@cpu"
    assert names[-1] == "table@cpu"
    # Nothing is rejection, even far beyond what can be made.
    for _ in range(60):
        driver.offer(147, 0.01)
    assert not any(ends for ends in driver.ends.values())


def test_mprec_binds_to_the_fastest_path_when_what_waits_fills_the_budget():
    wide, narrow = (
        PathSpec(name, "cpu", quality, LatencyModel(rows=(1, 256), median_s=curve, tail_s=curve))
        for name, quality, curve in (("wide@cpu", 0.9, (1e-5, 3e-3)), ("narrow@cpu", 0.8, (2e-5, 2e-4)))
    )
    driver = RouterDriver(router((wide, narrow), cpu_lanes(1), policy="mprec"))
    queries = [Query(23, 0.0, 0.010) for _ in range(400)]
    for query in queries:
        driver.router.offer(query, 0.0)
    assert queries[0].path == 0
    # the efficient batches of the wide path are small, and so soon done, but worse a row
    assert {query.path for query in queries[-100:]} == {1}


def test_mprec_rebinds_when_a_device_is_lost():
    driver = RouterDriver(router(BOTH, (GPU_LANE, *cpu_lanes(2)), policy="mprec"))
    driver.router.lane_down(1, 0.0)
    driver.router.lane_down(2, 0.0)
    query = driver.offer(147, 0.05)
    assert driver.router.paths[query.path].device == "cuda:0"
    driver.router.lane_up(1, 0.0)
    driver.router.lane_down(0, 0.0)
    driver.run(0.05)
    assert driver.ends[query] == ["answered"]
    assert driver.router.paths[query.path].device == "cpu"


def test_deeprecsys_gives_large_queries_to_the_accelerator_and_splits_small_ones():
    driver = RouterDriver(router(BOTH, (GPU_LANE, *cpu_lanes(2)), policy="deeprecsys"))
    policy = driver.router.policy
    assert isinstance(policy, DeepRecSys)
    large = driver.offer(policy.threshold, 0.05)
    small = driver.offer(policy.threshold - 1, 0.05)
    driver.run(0.01)
    assert driver.router.paths[large.path].device == "cuda:0"
    assert driver.router.paths[small.path].device == "cpu"


def test_deeprecsys_climbs_to_the_best_batch_size():
    """Latency as if 64 rows a sub-batch were best: the climb settles around it."""
    policy = DeepRecSys()
    seen = []
    now_s = 0.0
    for _ in range(12_000):
        latency_s = 1e-3 * (1 + abs(np.log2(policy.batch) - 6))
        now_s += 1.0
        policy.finished(Query(10, now_s - latency_s, now_s), now_s)
        seen.append(policy.batch)
    assert np.median(seen[6000:]) in (32, 64, 128)


def test_an_unknown_static_path_raises_plan_error():
    state = RouterState(CPU, cpu_lanes(1), Routing(), Limits(), 0.0)
    with pytest.raises(PlanError, match="no such path"):
        make_policy(Routing(policy="static:best@cpu"), state)
    assert isinstance(make_policy(Routing(policy="mprec"), state), MPRec)
