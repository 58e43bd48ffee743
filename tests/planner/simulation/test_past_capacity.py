"""Past capacity, on a core whose speed changes, `priced` keeps to the path of most information a second."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.costs import BatchCost, Costs
from polyrec.planner.simulation.outcomes import Outcomes
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals
from tests.planner.routing.servers import cpu_lanes, line

WIDTHS = {8: (0.2540, 5.0e-5), 16: (0.2560, 5.6e-5), 32: (0.2579, 1.1e-4)}
"""Quality, and seconds of a further row."""
PATHS = tuple(
    PathSpec(f"table.w{width}@cpu", "cpu", quality, line(1.5e-3, row_s, tail=1.4))
    for width, (quality, row_s) in WIDTHS.items()
)
COSTS = Costs(
    query_s=1e-3,
    refuse_s=3e-4,
    turn_s=1e-3,
    batches={path.name: BatchCost(batch_s=1e-3, query_s=7e-4) for path in PATHS},
)
"""A server takes longer for a batch than its profile says, by the same seconds on every path."""
RATE, SECONDS, BUDGET_S = 400.0, 20.0, 0.1


def served(policy: str, seed: int) -> Outcomes:
    """One inline lane on a core that is up to a fifth faster or slower, second by second."""
    rng = np.random.default_rng(seed)
    arrival_s = arrival_times(Arrivals(), RATE, SECONDS, rng)
    factors = np.exp(rng.uniform(-0.2, 0.2, round(SECONDS) + 2)).tolist()
    return Simulator(
        Trace(PATHS, Limits(), arrival_s, np.full(arrival_s.size, 23), BUDGET_S),
        cpu_lanes(1, "inline"),
        Routing(policy=policy),
        rng,
        costs=COSTS,
        slowdown=lambda now_s: factors[min(int(now_s), len(factors) - 1)],
    ).run()


@pytest.mark.long
def test_the_path_of_most_information_a_second_answers_most():
    shares = []
    for seed in range(4):
        static = {path.name: served(f"static:{path.name}", seed).figures(2.0) for path in PATHS}
        best = max(static, key=lambda name: static[name].information)
        assert static[best].in_budget < 0.95  # past its capacity
        priced = served("priced", seed).figures(2.0)
        assert priced.information >= 0.985 * static[best].information
        shares.append(priced.paths[best])
    assert np.mean(shares) >= 0.8


@pytest.mark.parametrize("seed", range(2))
def test_a_core_that_slows_down_answers_what_it_can_at_once_and_again_when_it_is_fast(seed):
    """For a second of three it takes three times as long, too long for all. No estimate runs away."""
    path = PathSpec("table@cpu", "cpu", 0.25, line(1.5e-4, 1.1e-5, tail=1.25))
    costs = Costs(query_s=2.6e-4, turn_s=1e-4, refuse_s=5e-5)
    slower, period_s = 3.0, 3.0

    def in_time(slowdown: Callable[[float], float]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        rng = np.random.default_rng(seed)
        arrival_s = arrival_times(Arrivals(), 800, 9.0, rng)
        outcomes = Simulator(
            Trace((path,), Limits(), arrival_s, np.full(arrival_s.size, 23), 0.01),
            cpu_lanes(1, "inline"),
            Routing(),
            rng,
            costs=costs,
            slowdown=slowdown,
        ).run()
        return arrival_s, (outcomes.path >= 0) & (outcomes.finish_s <= outcomes.deadline_s)

    arrival_s, always = in_time(lambda now_s: slower)
    assert always.mean() < 0.8
    arrival_s, found = in_time(lambda now_s: slower if now_s % period_s < 1 else 1.0)
    phase_s = arrival_s % period_s
    assert found[(phase_s > 0.1) & (phase_s < 1)].mean() >= 0.9 * always.mean()
    assert found[(phase_s > 1.1)].mean() >= 0.99
