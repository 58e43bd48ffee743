"""Simulates a finished plan: latency at its traffic, and the highest rate at which it meets the SLO.

`polyrec plan` prints both. The costs are those of the profile and of the front in `routing`; what a server
does beyond them (costs.py) is not known before it runs.
"""

from __future__ import annotations

import numpy as np

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.expected import Simulated
from polyrec.planner.plan import Plan
from polyrec.planner.simulation.outcomes import Figures
from polyrec.planner.simulation.simulator import Simulator, specs
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Traffic

SLO_SHARE = 0.99
QUERIES, MAX_QUERIES = 8_000, 40_000
"""Queries simulated at one rate, and the most that are to make a second."""
MIN_S, MAX_S = 1.0, 60.0
WARM_SHARE = 0.1
"""Share of the time at its beginning that is not counted, while the router learns the rate."""
STEP = 1.3
"""Factor from the first rate to the second. It is squared for each further one, until one meets the SLO and
another does not."""
MAX_STEPS = 6
"""The last rate is 2,600 times the first one, or as much below it."""
PRECISION = 1.035
"""Factor that may lie between the highest rate found to meet the SLO and the lowest found to miss it."""


def preview(plan: Plan, traffic: Traffic, served_rate: float) -> Simulated:
    """Simulates a plan's traffic, and Poisson arrivals of the same sizes at other rates.

    served_rate: queries/s that the planner expects to be served.

    Raises PlanError if a path's latency or quality is missing, TrafficError for a bad trace.
    """
    here = _figures(plan, traffic, traffic.rate)
    steady = traffic.model_copy(update={"arrivals": Arrivals()})
    met = _highest_rate(plan, steady, served_rate or traffic.rate)
    return Simulated(
        in_budget=here.in_budget,
        p50_ms=1e3 * here.p50_s,
        p99_ms=1e3 * here.p99_s,
        highest_rate=None if met is None else met[0],
        quality_there=None if met is None else met[1].quality,
    )


def _highest_rate(plan: Plan, traffic: Traffic, rate: float) -> tuple[float, Figures] | None:
    """Returns the highest rate at which SLO_SHARE are in budget, and its figures; None if there is none.

    rate: tried first.
    """
    met: tuple[float, Figures] | None = None
    missed = 0.0
    step = STEP
    for _ in range(MAX_STEPS):
        figures = _figures(plan, traffic, rate)
        if figures.in_budget >= SLO_SHARE:
            met = rate, figures
            rate *= step
        else:
            missed = rate
            rate /= step
        step *= step
        if met is not None and missed:
            break
    if met is None or not missed:
        return None
    while missed / met[0] > PRECISION:
        rate = (met[0] * missed) ** 0.5
        figures = _figures(plan, traffic, rate)
        if figures.in_budget >= SLO_SHARE:
            met = rate, figures
        else:
            missed = rate
    return met


def _figures(plan: Plan, traffic: Traffic, rate: float) -> Figures:
    seconds = min(max(QUERIES / rate, MIN_S), MAX_S, MAX_QUERIES / rate)
    rng = np.random.default_rng(0)
    arrival_s = arrival_times(traffic.arrivals, rate, seconds, rng)
    rows = traffic.sizes.sample(arrival_s.size, rng)
    paths, lanes = specs(plan)
    trace = Trace(paths, plan.limits, arrival_s, rows, plan.default_budget_ms / 1e3)
    outcomes = Simulator(trace, lanes, plan.routing, np.random.default_rng(1)).run()
    return outcomes.figures(WARM_SHARE * seconds)
