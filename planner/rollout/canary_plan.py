"""Makes a canary's plan of the plan under trial: lanes that cannot disturb those of the stable version.

An inline lane would execute in the stable version's event loop, and a thread holds the interpreter, so CPU
lanes become processes, which the server runs in spare time. A crash then costs the canary alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan, PlanError, PlannedLane

PREFIX = "canary."
MAX_NAME = 64


def canary_plan(plan: Plan, known: Mapping[str, LatencyModel], other: LatencyModel) -> Plan:
    """Returns the plan with CPU lanes as processes, lanes named `canary.`. Raises PlanError for tiers.

    known: latency of the stable version's paths, from which those of the same name start that have none, and
    any other from `other`. To measure them, the server would open the canary's runtimes in its own process.
    """
    if plan.placement is not None:
        raise PlanError(
            "a plan with a placement cannot be a canary: its memory budgets are those of the whole machine; "
            "use reload"
        )
    paths = tuple(
        path.model_copy(update={"latency": path.latency or known.get(path.name, other)})
        for path in plan.paths
    )
    return plan.model_copy(update={"paths": paths, "lanes": tuple(map(_apart, plan.all_lanes()))})


def _apart(lane: PlannedLane) -> PlannedLane:
    kind = "process" if lane.device == "cpu" else lane.kind
    return lane.model_copy(update={"name": (PREFIX + lane.name)[:MAX_NAME], "kind": kind})
