"""Draws service times of simulated batches, lognormal with the path's median and tail, including faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log

import numpy as np

from polyrec.planner.routing.lanes.path import PathState
from polyrec.planner.routing.latency.latency_table import TAIL_DEVIATIONS
from polyrec.planner.routing.query import Dispatch
from polyrec.planner.simulation.costs import BatchCost
from polyrec.planner.simulation.faults import Fault


class ExecutionTimes:
    """Draws the service times of one simulation. batches: costs beyond the profile, by path name."""

    def __init__(
        self,
        paths: Sequence[PathState],
        batches: Mapping[str, BatchCost],
        faults: Sequence[Fault],
        rng: np.random.Generator,
    ) -> None:
        self._latencies = [path.latency for path in paths]
        costs = (batches.get(path.name) or BatchCost() for path in paths)
        self._costs = [(cost.batch_s, cost.query_s) for cost in costs]
        self._faults = tuple(faults)
        self._first_faults = [fault for fault in faults if fault.kind == "first"]
        self._rng = rng
        self._normals: list[float] = []

    def draw_s(self, dispatch: Dispatch, now_s: float, slowdown: float) -> float:
        """Draws the service time in seconds of a batch that starts now. slowdown: factor on execution."""
        latency = self._latencies[dispatch.path]
        median_s, tail_s = latency.median[dispatch.rows], latency.tail[dispatch.rows]
        if not self._normals:
            self._normals = self._rng.standard_normal(65536).tolist()
        batch_s, query_s = self._costs[dispatch.path]
        typical_s = max(median_s + batch_s + query_s * (len(dispatch.parts) - 1), 0.0)
        noise = exp(log(tail_s / median_s) / TAIL_DEVIATIONS * self._normals.pop())
        service_s = typical_s * noise * slowdown
        for fault in self._faults:
            if fault.lane != dispatch.lane:
                continue
            if fault.kind == "slow" and fault.begin_s <= now_s < fault.end_s:
                service_s *= fault.factor
            elif fault.kind == "first" and fault in self._first_faults and fault.begin_s <= now_s:
                self._first_faults.remove(fault)
                service_s *= fault.factor
            elif fault.kind == "stall" and now_s < fault.end_s and now_s + service_s > fault.begin_s:
                service_s += fault.end_s - max(now_s, fault.begin_s)
        return service_s
