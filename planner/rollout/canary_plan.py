"""Derives a canary's plan from a plan, such that its lanes do not disturb those of the stable version.

An inline lane would execute in the stable version's event loop, and a thread would hold the GIL. So CPU lanes
become processes, which use only spare CPU time, and whose crash affects only the canary.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan, PlanError, PlannedLane

PREFIX = "canary."
MAX_NAME = 64


def canary_plan(plan: Plan, known: Mapping[str, LatencyModel], other: LatencyModel) -> Plan:
    """Returns the plan with CPU lanes as processes, lanes named `canary.`.

    known: latency models of the stable version's paths, by name. A path without one of its own starts with
    that of its name, or else with `other`: to measure it, the server would open the canary's runtimes in its
    own process. Raises PlanError for rows in tiers.
    """
    if plan.in_tiers:
        raise PlanError(
            "a plan with rows in tiers cannot be a canary: its memory budgets are those of the whole "
            "machine; use reload"
        )
    paths = tuple(
        path.model_copy(update={"latency": path.latency or known.get(path.name, other)})
        for path in plan.paths
    )
    return plan.model_copy(update={"paths": paths, "lanes": tuple(map(_isolated, plan.all_lanes()))})


def _isolated(lane: PlannedLane) -> PlannedLane:
    kind = "process" if lane.device == "cpu" else lane.kind
    return lane.model_copy(update={"name": (PREFIX + lane.name)[:MAX_NAME], "kind": kind})
