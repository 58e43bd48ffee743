"""Reads a server's load and speed from its metrics."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from polyrec.planner.fleet.autoscaling import ReplicaLoad
from polyrec.planner.fleet.weights import weight_percent

_NAMES = {
    "polyrec_capacity_rows_per_second": "capacity_rows_s",
    "polyrec_arrival_rows_per_second": "arrival_rows_s",
    "polyrec_arrival_queries_per_second": "arrival_queries_s",
    "polyrec_queue_rows": "queue_rows",
    "polyrec_budget_seconds": "budget_s",
    "polyrec_device_price": "price",
}
_UP, _CORRECTION = "polyrec_lane_up", "polyrec_lane_correction"
PREFIXES = (*_NAMES, _UP, _CORRECTION)


@dataclass(frozen=True, slots=True)
class LiveState:
    """Load and speed of a server.

    budget_s: usual latency budget.
    price: price per second of its most expensive device.
    lanes: number of live lanes.
    lane_share: speed of all lanes relative to the profile.
    """

    capacity_rows_s: float = 0.0
    arrival_rows_s: float = 0.0
    arrival_queries_s: float = 0.0
    queue_rows: float = 0.0
    budget_s: float = 0.0
    price: float = 0.0
    lanes: int = 1
    lane_share: float = 1.0

    @property
    def backlog_s(self) -> float:
        """Seconds needed to execute the waiting rows on all lanes' fastest paths."""
        return self.queue_rows / self.capacity_rows_s if self.capacity_rows_s > 0 else 0.0

    @property
    def demand(self) -> float:
        """Arriving rows divided by the capacity of the fastest paths."""
        return self.arrival_rows_s / self.capacity_rows_s if self.capacity_rows_s > 0 else 0.0

    @property
    def work_s(self) -> float:
        """Seconds that an average query adds to the backlog."""
        if not (self.capacity_rows_s > 0 and self.arrival_queries_s > 0):
            return 0.0
        return self.arrival_rows_s / self.arrival_queries_s / self.capacity_rows_s

    def load(self) -> ReplicaLoad:
        """Returns the load in the form that autoscaling needs."""
        return ReplicaLoad(self.demand, self.backlog_s, self.price)

    def percent(self) -> int:
        """Returns the percentage of the server's weight that the balancer should use."""
        return weight_percent(self.lane_share, self.backlog_s, self.budget_s)


def read_state(metrics: str) -> LiveState:
    """Parses the text of /metrics.

    Sums over models, except for price and budget, where the maximum counts.
    """
    text = "\n".join(line for line in metrics.splitlines() if line.startswith(PREFIXES))
    found: dict[str, float] = {}
    up: dict[tuple[str, ...], float] = {}
    correction: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text + "\n"):
        for sample in family.samples:
            name = _NAMES.get(sample.name)
            if sample.name in (_UP, _CORRECTION):
                (up if sample.name == _UP else correction)[tuple(sample.labels.values())] = sample.value
            elif name in ("price", "budget_s"):
                found[name] = max(found.get(name, 0.0), sample.value)
            elif name is not None:
                found[name] = found.get(name, 0.0) + sample.value
    # capped, as a lane faster than its profile does not compensate for a lost one
    speeds = [alive / max(correction.get(lane, 1.0), 1.0) for lane, alive in up.items()]
    share = sum(speeds) / len(speeds) if speeds else 1.0
    return LiveState(**found, lanes=max(int(sum(up.values())), 1), lane_share=share)
