"""A path as the plan gives it, and as decisions see it."""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.routing.latency.latency_table import Curve

INF = float("inf")


@dataclass(frozen=True, slots=True)
class PathSpec:
    """A path: its place, how often it is right on held-out rows, and what a batch on one lane takes."""

    name: str
    device: str
    accuracy: float
    latency: LatencyModel


class PathState:
    """A path as decisions see it. value: accuracy times weight; representation: the name before `@`.

    row_s: seconds of a row in a batch worth merging, as corrected. efficient: no mix of two others of its
    device beats it.
    rows: dispatched recently.
    """

    __slots__ = (
        "accuracy", "curve", "device", "efficient", "index", "name", "representation", "row_s", "rows",
        "value",
    )  # fmt: skip

    def __init__(self, index: int, spec: PathSpec, device: int, representation: int, curve: Curve) -> None:
        self.index, self.name, self.device = index, spec.name, device
        self.representation = representation
        self.accuracy = self.value = spec.accuracy
        self.curve = curve
        self.row_s = INF
        self.efficient = True
        self.rows = 0.0
