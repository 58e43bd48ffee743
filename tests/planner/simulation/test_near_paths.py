"""With paths that differ little in speed, `priced` is as good as the better one at every load."""

from __future__ import annotations

import numpy as np
import pytest

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.faults import Fault
from polyrec.planner.simulation.outcomes import Figures
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes
from tests.planner.routing.servers import cpu_lanes, line

PATHS = (
    PathSpec("fp32@cpu", "cpu", 0.325, line(5e-4, 8.0e-6, tail=1.4)),
    PathSpec("int8@cpu", "cpu", 0.318, line(4.7e-4, 7.2e-6, tail=1.4)),
)
SECONDS, BUDGET_S = 20.0, 0.01
NEIGHBOR = tuple(Fault("stop", -1, begin, begin + 0.004) for begin in np.arange(0.05, SECONDS, 0.1))
"""Another program takes the core for 4 ms, ten times a second."""


def served(policy: str, rate: float, faults: tuple[Fault, ...]) -> Figures:
    rng = np.random.default_rng(0)
    arrival_s = arrival_times(Arrivals(), rate, SECONDS, rng)
    rows = Sizes(kind="lognormal", mean=150).sample(arrival_s.size, rng)
    trace = Trace(PATHS, Limits(), arrival_s, rows, BUDGET_S)
    return (
        Simulator(trace, cpu_lanes(1, "inline"), Routing(policy=policy), rng, faults=faults)
        .run()
        .figures(2.0)
    )


@pytest.mark.parametrize("faults", [(), NEIGHBOR], ids=["alone", "neighbor"])
@pytest.mark.parametrize(
    "rate", [*(pytest.param(rate, marks=pytest.mark.long) for rate in (150, 250, 350, 450)), 550]
)
def test_priced_makes_the_information_of_the_better_path(rate, faults):
    static = max(served(f"static:{path.name}", rate, faults).information for path in PATHS)
    assert served("priced", rate, faults).information >= 0.995 * static
