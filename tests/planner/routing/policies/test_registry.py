"""Policies: each by its own rule, and the default ahead of the others."""

import numpy as np
import pytest

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Limits, PlanError, Routing
from polyrec.planner.routing.policies.mprec import MPRec
from polyrec.planner.routing.policies.registry import make_policy
from polyrec.planner.routing.query import Reason
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes
from tests.planner.routing.servers import BOTH, CPU, GPU_LANE, POLICIES, RouterDriver, cpu_lanes, router

SERVERS = {"cpu": (CPU, cpu_lanes(2)), "gpu": (BOTH, (GPU_LANE, *cpu_lanes(2)))}
LIMITS = Limits(max_batch_rows=1024)


def share(server: str, policy: str, rate: float, seed: int = 0, arrivals: Arrivals | None = None) -> float:
    """Correct predictions within deadlines, of those at most possible, once the rate is known."""
    rng = np.random.default_rng(seed)
    times = arrival_times(arrivals or Arrivals(), rate, 0.7 if server == "cpu" else 0.35, rng)
    rows = Sizes(kind="lognormal", mean=100).sample(times.size, rng)
    paths, lanes = SERVERS[server]
    trace = Trace(paths, LIMITS, times, rows, 0.01)
    outcomes = Simulator(trace, lanes, Routing(policy=policy), rng).run()
    late = times >= times[-1] / 2
    return float(outcomes.information[late].sum() / (0.79 * rows[late].sum()))


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


def test_an_unknown_static_path_raises_plan_error():
    state = RouterState(CPU, cpu_lanes(1), Routing(), Limits(), 0.0)
    with pytest.raises(PlanError, match="no such path"):
        make_policy(Routing(policy="static:best@cpu"), state)
    assert isinstance(make_policy(Routing(policy="mprec"), state), MPRec)


@pytest.mark.parametrize(("path", "reason"), [("hybrid@cpu", Reason.BEST), ("table@cpu", Reason.POLICY)])
def test_a_static_path_is_named_the_policys_choice_only_where_it_is_not_the_best(path, reason):
    driver = RouterDriver(router(policy=f"static:{path}"))
    query = driver.submit(23, 0.1)
    driver.run(0.05)
    assert driver.router.state.path_specs[query.path].name == path
    assert query.reason is reason
