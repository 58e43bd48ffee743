"""Computes the upper bound of two models on one core in the time left by reading, answering and rejecting.

From the models' requests and a run's resource use, it computes the largest share of requests that could be in
time. Each model has half of the lane time guaranteed (planner/simulation/bound.py); batches are as fast as in
that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.lanes.front_time import Front
from polyrec.models.schema.batch import F64
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.simulation.bound import joint_bound
from polyrec.planner.simulation.trace import Trace

GUARANTEED = (0.5, 0.5)
STEPS = 2
"""Steps of the search for the bound, between the answered requests and all requests."""


@dataclass(frozen=True, slots=True)
class LaneUse:
    """Use of the lanes in a run, by model. busy_s: seconds; batches, rows: executed."""

    busy_s: F64
    batches: F64
    rows: F64

    def since(self, before: LaneUse) -> LaneUse:
        """Returns the use since `before`."""
        return LaneUse(self.busy_s - before.busy_s, self.batches - before.batches, self.rows - before.rows)


def bound_of(traces: Sequence[Trace], spent: LaneUse, seconds: float, front: Front) -> float:
    """Returns the largest share of requests that could be in time. traces: of one path each."""
    paced = []
    for index, trace in enumerate(traces):
        (path,) = trace.paths
        latency = path.latency
        usual = latency.median(max(1, round(spent.rows[index] / spent.batches[index])))
        pace = float(spent.busy_s[index] / spent.batches[index]) / usual
        now = LatencyModel(
            rows=latency.rows,
            median_s=tuple(pace * s for s in latency.median_s),
            tail_s=tuple(pace * s for s in latency.tail_s),
        )
        paced.append(replace(trace, paths=(replace(path, latency=now),)))
    whole = sum(float(trace.rows.sum()) for trace in paced)

    def share(assumed: float) -> float:
        """Returns the largest share in the lane time that remains if the assumed share is answered."""
        lanes = {"cpu": 1 - min(0.99, front.seconds(assumed * front.requests) / seconds)}
        return joint_bound(paced, lanes, guaranteed=GUARANTEED).rows / whole

    # the share that is answered if it is assumed falls as more is assumed, nearly in a straight line
    least, most = 0.0, 1.0
    over, under = share(least) - least, share(most) - most
    if over <= 0 or under >= 0:
        return least + over if over <= 0 else most + under
    for _ in range(STEPS):
        between = least + (most - least) * over / (over - under)
        error = share(between) - between
        if error > 0:
            least, over = between, error
        else:
            most, under = between, error
    return min(least + over, most)  # from above
