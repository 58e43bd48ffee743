"""Makes a canary's plan of the plan under trial: lanes that cannot disturb those of the stable version.

An inline lane would execute in the stable version's event loop, and a thread holds the interpreter, so CPU
lanes become processes; the server runs them at low priority. A crash then costs the canary alone.
"""

from __future__ import annotations

from polyrec.planner.plan import Plan, PlanError, PlannedLane

PREFIX = "canary."
MAX_NAME = 64


def canary_plan(plan: Plan) -> Plan:
    """Returns the plan with CPU lanes as processes, lanes named `canary.`. Raises PlanError for tiers."""
    if plan.placement is not None:
        raise PlanError(
            "a plan with a placement cannot be a canary: its memory budgets are those of the whole machine; "
            "use reload"
        )
    return plan.model_copy(update={"lanes": tuple(map(_apart, plan.all_lanes()))})


def _apart(lane: PlannedLane) -> PlannedLane:
    kind = "process" if lane.device == "cpu" else lane.kind
    return lane.model_copy(update={"name": (PREFIX + lane.name)[:MAX_NAME], "kind": kind})
