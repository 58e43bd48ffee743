"""Queries that take most of their budget are not merged, and the path that can answer them is found."""

from __future__ import annotations

import numpy as np
import pytest

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import LaneKind, Limits, Routing
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.outcomes import Figures
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes
from tests.planner.routing.servers import cpu_lanes, line

SECONDS = 10.0
SLOWER_PER_ROW = (
    PathSpec("best@cpu", "cpu", 0.4256, line(9.6e-4, 1.61e-5, tail=2.4)),
    PathSpec("fast@cpu", "cpu", 0.3619, line(9.6e-4, 2.6e-6, tail=2.0)),
)
"""The best path takes longer than the budget for most queries, but as long as the other one for one row."""
FIXED_COSTS = (
    PathSpec("best@cpu", "cpu", 0.5637, line(1.72e-3, 3.29e-5, tail=2.15)),
    PathSpec("middle@cpu", "cpu", 0.5544, line(3.41e-3, 1.38e-5, tail=2.58)),
    PathSpec("fast@cpu", "cpu", 0.5542, line(3.11e-3, 7.4e-6, tail=2.58)),
)
"""The fast paths have a fixed cost that is most of what an inline lane may block the event loop for."""

UNUSED_AT_FIRST = (
    PathSpec("best@cpu", "cpu", 0.4020, line(1.31e-3, 2.3e-6, tail=2.36)),
    PathSpec("fast@cpu", "cpu", 0.4015, line(1.1e-4, 5.1e-6, tail=1.69)),
)
"""Most queries are in time on the fast path only, which is slower per row in large batches."""


def served(
    policy: str, paths: tuple[PathSpec, ...], kind: LaneKind, budget_s: float, rate: float, seed: int
) -> Figures:
    rng = np.random.default_rng(seed)
    arrival_s = arrival_times(Arrivals(), rate, SECONDS, rng)
    rows = Sizes(kind="lognormal", mean=170).sample(arrival_s.size, rng)
    lanes = cpu_lanes(1 if kind == "inline" else 3, kind)
    trace = Trace(paths, Limits(), arrival_s, rows, budget_s)
    return Simulator(trace, lanes, Routing(policy=policy), rng).run().figures(2.0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize(
    ("paths", "kind", "budget_s", "rate"),
    [
        (SLOWER_PER_ROW, "process", 0.0037, 790.0),
        (FIXED_COSTS, "inline", 0.0128, 58.0),
        (UNUSED_AT_FIRST, "process", 0.0027, 1000.0),
    ],
    ids=["slower per row", "fixed costs", "unused at first"],
)
def test_it_makes_the_information_of_the_best_path(paths, kind, budget_s, rate, seed):
    static = max(
        served(f"static:{path.name}", paths, kind, budget_s, rate, seed).information for path in paths
    )
    assert served("priced", paths, kind, budget_s, rate, seed).information >= 0.97 * static
