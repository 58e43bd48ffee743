"""Paths: the plan's specification, and the state by which decisions are made."""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.routing.latency.latency_table import LatencyTable

INF = float("inf")


@dataclass(frozen=True, slots=True)
class PathSpec:
    """A path: its device, its accuracy on held-out rows, and the latency of a batch on one lane."""

    name: str
    device: str
    accuracy: float
    latency: LatencyModel


class PathState:
    """A path's value, latency and recent use.

    value: accuracy times weight. representation: index of the name before `@`. row_s: seconds of device time
    per row in a merged batch, as corrected. efficient: no mix of two other paths of its device is better.
    rows: dispatched recently.
    """

    __slots__ = (
        "accuracy", "device", "efficient", "index", "latency", "name", "representation", "row_s", "rows",
        "value",
    )  # fmt: skip

    def __init__(
        self, index: int, spec: PathSpec, device: int, representation: int, latency: LatencyTable
    ) -> None:
        self.index, self.name, self.device = index, spec.name, device
        self.representation = representation
        self.accuracy = self.value = spec.accuracy
        self.latency = latency
        self.row_s = INF
        self.efficient = True
        self.rows = 0.0
