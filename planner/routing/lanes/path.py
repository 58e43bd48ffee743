"""A path's specification from the plan, and the state on which routing decisions are based."""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.routing.latency.latency_table import LatencyTable

INF = float("inf")


@dataclass(frozen=True, slots=True)
class PathSpec:
    """A path: its device, its quality on test rows, and the latency of a batch on one lane.

    explicit_value: `base_value`, if it is not the quality.
    accuracy: share of test rows classified correctly at threshold 0.5, if known; only reported.
    """

    name: str
    device: str
    quality: float
    latency: LatencyModel
    explicit_value: float | None = None
    accuracy: float | None = None

    @property
    def base_value(self) -> float:
        """Value of an answered row to routing (planner/quality.py), before the operator's weight."""
        return self.quality if self.explicit_value is None else self.explicit_value


class PathState:
    """A path's value, latency and recent use.

    base_value, value: what an answered row is worth, without and with the operator's weight.
    representation: index of the name before `@`.
    row_s: corrected seconds of device time per row in a merged batch.
    efficient: whether no mix of two other paths on its device is better (`prices.is_efficient`).
    rows: recently dispatched rows.
    """

    __slots__ = (
        "base_value", "device", "efficient", "index", "latency", "name", "representation", "row_s", "rows",
        "value",
    )  # fmt: skip

    def __init__(
        self, index: int, spec: PathSpec, device: int, representation: int, latency: LatencyTable
    ) -> None:
        self.index, self.name, self.device = index, spec.name, device
        self.representation = representation
        self.base_value = self.value = spec.base_value
        self.latency = latency
        self.row_s = INF
        self.efficient = True
        self.rows = 0.0
