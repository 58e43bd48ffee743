"""Past capacity, urgent heads of the queue do not keep batches small for long."""

from __future__ import annotations

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

PATH = PathSpec("table@cpu", "cpu", 0.5, line(1.5e-3, 9e-6, tail=2.9))
"""A single query takes nearly as long as a merged batch, and one of a hundred batches three times as long."""
SECONDS, BUDGET_S = 8.0, 0.027


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_that_merged_batches_could_answer_is_answered(seed):
    rng = np.random.default_rng(seed)
    bursts = Arrivals(kind="bursty", factor=3.0, period_s=1.2, burst_s=0.4)
    arrival_s = arrival_times(bursts, 3300.0, SECONDS, rng)
    rows = Sizes(kind="lognormal", mean=29).sample(arrival_s.size, rng)
    neighbor = Fault("neighbor", -1, 1.0, SECONDS)
    trace = Trace((PATH,), Limits(), arrival_s, rows, BUDGET_S)
    outcomes = Simulator(
        trace, cpu_lanes(3, "process"), Routing(policy="priced"), rng, faults=(neighbor,)
    ).run()
    # 0.55 if the queue counts as short because merged batches would clear it
    assert outcomes.figures(2.0).in_budget > 0.85
