"""Ray Serve's autoscaling policy: applies planner/fleet/autoscaling.py to the replicas' reports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from polyrec.planner.fleet.autoscaling import ReplicaLoad, Scaling, ScalingBounds, decide

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

_LOAD = tuple(field.name for field in fields(ReplicaLoad))


class BacklogPolicy:
    """The policy that Serve's controller calls. bounds: fields of ScalingBounds."""

    def __init__(self, **bounds: Any) -> None:
        self._bounds = ScalingBounds(**bounds)

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Returns the desired number of replicas and the policy's state."""
        now_s = context.current_time or time.time()
        kept = context.policy_state.get("last")
        last = Scaling(**kept) if kept else None
        loads = replica_loads(context.aggregated_metrics)
        decision = decide(loads, context.target_num_replicas, last, now_s, self._bounds)
        return decision.replicas, {"last": asdict(decision)}


def replica_loads(metrics: Mapping[str, Mapping[Any, float]] | None) -> list[ReplicaLoad]:
    """Returns the loads of replicas with complete reports. metrics: name -> replica -> value."""
    found = metrics or {}
    first = found.get(_LOAD[0], {})
    complete = [r for r in first if all(r in found.get(name, {}) for name in _LOAD)]
    return [ReplicaLoad(**{name: found[name][r] for name in _LOAD}) for r in complete]
