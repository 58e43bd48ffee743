"""Simulates runs and returns them in the form of measured ones.

Given a plan, a policy and a schedule, `simulated` returns an `Outcome` like that of a measured run, so that
the same code computes the figures of both. Latency models and qualities missing from the plan come from the
live server, which measured them when it loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polyrec.loadtest.results.outcome import Outcome
from polyrec.models.schema.batch import F64, I64
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan
from polyrec.planner.simulation.costs import Costs
from polyrec.planner.simulation.outcomes import Status
from polyrec.planner.simulation.simulator import Simulator, Slowdown, no_slowdown, specs
from polyrec.planner.simulation.trace import Trace

HTTP = {Status.ANSWERED: 200, Status.REJECTED: 429, Status.EXPIRED: 504, Status.FAILED: 503}


def completed(plan: Plan, opened: list[dict[str, Any]]) -> Plan:
    """Returns the plan with latency and quality of every path. opened: the paths of /v1/paths."""
    served = {path["name"]: path for path in opened}
    paths = []
    for path in plan.paths:
        found = served.get(path.name, {})
        more: dict[str, Any] = {}
        if path.latency is None and found.get("latency"):
            curve = {key: tuple(values) for key, values in found["latency"].items()}
            more["latency"] = LatencyModel.model_validate(curve)
        if path.quality is None and found.get("quality") is not None:
            more["quality"] = float(found["quality"])
        if path.accuracy is None and found.get("accuracy") is not None:
            more["accuracy"] = float(found["accuracy"])
        paths.append(path.model_copy(update=more))
    return plan.model_copy(update={"paths": tuple(paths)})


def simulated(
    plan: Plan,
    policy: str,
    due_s: F64,
    rows: I64,
    seconds: float,
    slo_s: float,
    sent_budget_s: float,
    seed: int,
    costs: Costs | None = None,
    slowdown: Slowdown = no_slowdown,
) -> Outcome:
    """Simulates one run. Raises PlanError for a path without figures.

    slo_s: the client's limit. sent_budget_s: the budget in the request. costs: None: the plan's.
    slowdown: of the core, from the start of the schedule.
    """
    paths, lanes = specs(plan)
    routing = plan.routing.model_copy(update={"policy": policy})
    trace = Trace(paths, plan.limits, due_s, rows, sent_budget_s)
    random = np.random.default_rng(seed)
    made = Simulator(trace, lanes, routing, random, costs=costs, slowdown=slowdown).run()
    status = np.array([HTTP.get(Status(s), 503) for s in range(len(Status))], np.int64)[made.status]
    n = due_s.size
    return Outcome(
        due_s=due_s,
        lag_s=np.zeros(n),
        latency_s=made.finish_s - due_s,
        status=status,
        rows=rows,
        budget_s=np.full(n, slo_s),
        path=made.path.astype(np.int16),
        paths=made.names,
        degraded=np.zeros(n, bool),
        errors={},
        begin_s=0.0,
        end_s=seconds,
        connections=0,
        held_back=0,
    )
