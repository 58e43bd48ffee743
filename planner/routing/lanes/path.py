"""A path's specification from the plan, and the state on which routing decisions are based."""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.routing.latency.latency_table import LatencyTable

INF = float("inf")


@dataclass(frozen=True, slots=True)
class PathSpec:
    """A path: its device, its quality on test rows, and the latency of a batch on one lane.

    value: what an answered row is worth to routing (planner/quality.py); None means its quality.
    accuracy: share of test rows classified correctly at threshold 0.5, if known; only reported.
    """

    name: str
    device: str
    quality: float
    latency: LatencyModel
    value: float | None = None
    accuracy: float | None = None

    @property
    def worth(self) -> float:
        return self.quality if self.value is None else self.value


class PathState:
    """A path's value, latency and recent use.

    worth, value: worth of an answered row, and that times the operator's weight.
    representation: index of the name before `@`.
    row_s: corrected seconds of device time per row in a merged batch.
    efficient: whether no mix of two other paths on its device is better.
    rows: recently dispatched rows.
    """

    __slots__ = (
        "device", "efficient", "index", "latency", "name", "representation", "row_s", "rows",
        "value", "worth",
    )  # fmt: skip

    def __init__(
        self, index: int, spec: PathSpec, device: int, representation: int, latency: LatencyTable
    ) -> None:
        self.index, self.name, self.device = index, spec.name, device
        self.representation = representation
        self.worth = self.value = spec.worth
        self.latency = latency
        self.row_s = INF
        self.efficient = True
        self.rows = 0.0
