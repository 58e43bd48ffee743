"""Which path is faster depends on a query's rows, and each query gets the one that is better at its size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.faults import Fault
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes
from tests.planner.routing.servers import cpu_lanes, line

SECONDS = 12.0


@dataclass(frozen=True)
class Load:
    """Poisson arrivals. rate: queries/s."""

    paths: tuple[PathSpec, ...]
    rate: float
    sizes: Sizes
    budget_s: float
    lanes: int
    faults: tuple[Fault, ...] = ()

    def information(self, policy: str, seed: int) -> float:
        """Returns the information a second under a policy."""
        rng = np.random.default_rng(seed)
        arrival_s = arrival_times(Arrivals(), self.rate, SECONDS, rng)
        rows = self.sizes.sample(arrival_s.size, rng)
        trace = Trace(self.paths, Limits(), arrival_s, rows, self.budget_s)
        lanes, routing = cpu_lanes(self.lanes, "process"), Routing(policy=policy)
        return Simulator(trace, lanes, routing, rng, faults=self.faults).run().figures(2.0).information

    def over_best_static(self, seed: int) -> float:
        """Returns the information of `priced` over that of the best static path."""
        best = max(self.information(f"static:{path.name}", seed) for path in self.paths)
        return self.information("priced", seed) / best


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_large_queries_have_a_path_of_their_own(seed):
    # the first path is faster up to 6 rows, and cannot answer more than 18 in time
    quick = PathSpec("quick@cpu", "cpu", 0.35, line(2e-3, 1.5e-3, tail=1.5))
    steady = PathSpec("steady@cpu", "cpu", 0.34, line(1e-2, 3e-4, tail=1.5))
    load = Load((quick, steady), 120.0, Sizes(kind="heavy", mean=6), 0.03, 2)
    # 0.83 if queries of all sizes have the same paths
    assert load.over_best_static(seed) > 1.05


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_with_time_to_spare_the_path_that_is_faster_in_usual_batches_is_used(seed):
    # the first path is faster in batches of more than 480 rows, which do not occur at this load
    merged = PathSpec("merged@cpu", "cpu", 0.664, line(6.4e-4, 9.5e-7))
    quick = PathSpec("quick@cpu", "cpu", 0.651, line(9e-5, 2.1e-6, tail=1.5))
    neighbor = Fault("neighbor", -1, 1.0, SECONDS)
    load = Load((merged, quick), 640.0, Sizes(kind="lognormal", mean=200), 3.8e-3, 1, (neighbor,))
    # 0.91 if the largest batches decide
    assert load.over_best_static(seed) > 1.05
