"""A lane as the plan gives it, and as decisions see it: what it may use, what it does, how it is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.planner.plan import LaneKind
from polyrec.planner.routing.lanes.breaker import CLOSED, Breaker
from polyrec.planner.routing.latency.correction import Correction
from polyrec.planner.routing.latency.latency_table import Curve
from polyrec.planner.routing.path_option import Option
from polyrec.planner.routing.query import Dispatch, Part

INF = float("inf")


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """An executor on a device."""

    name: str
    device: str
    kind: LaneKind


class LaneState:
    """A lane as decisions see it. All lists are by path index.

    order: paths it may use, most accurate first, without those that another beats in both ways; options: what
    decisions ask of them. fastest: of these the one with most rows/s; rate: those, rows/s as corrected.
    others: usable lanes but this one. faster: lanes that are much faster, with the rows/s at which they would
    have to do the work for this one not to be needed. most: rows that one batch may have; merge: rows beyond
    which queries are not merged. free_s: when its batch should be over; due_s: the first deadline in it;
    overdue_s: when the lane counts as stalled; stranded: parts of a stalled batch that no other lane can make
    in time. again_s: when to ask it again if nothing happens. heard_s: when it last finished a batch; usual:
    rows of its batches, the recent mean; used: share of the last seconds that it worked.
    """

    __slots__ = (
        "again_s", "alive", "breaker", "busy_s", "correction", "device", "due_s", "faster", "fastest",
        "flight", "free_s", "heard_s", "index", "inline", "merge", "most", "name", "options", "order",
        "others", "overdue_s", "paths", "rate", "stranded", "used", "usual",
    )  # fmt: skip

    def __init__(
        self, index: int, spec: LaneSpec, device: int, paths: list[int], curves: Sequence[Curve]
    ) -> None:
        """paths: indexes of those it may execute. curves: of all paths."""
        self.index, self.name, self.device = index, spec.name, device
        self.inline = spec.kind == "inline"
        self.paths = paths
        self.order: list[int] = []
        self.options: list[Option] = []
        self.others: list[LaneState] = []
        self.faster: list[tuple[LaneState, float]] = []
        self.fastest = -1
        self.rate = 0.0
        self.most = [1] * len(curves)
        self.merge = [1] * len(curves)
        self.correction = Correction(curves)
        self.breaker = Breaker()
        self.alive = True
        self.flight: Dispatch | None = None
        self.free_s = 0.0
        self.due_s = self.overdue_s = self.again_s = float("inf")
        self.stranded: list[Part] = []
        self.heard_s = 0.0
        self.busy_s = 0.0
        self.used = 0.0
        self.usual = 1.0

    @property
    def usable(self) -> bool:
        """It is alive and trusted with work."""
        return self.alive and self.breaker.state is CLOSED

    def free(self, now_s: float) -> None:
        """Its batch is over, or given up."""
        self.flight = None
        self.free_s = now_s
        self.due_s = self.overdue_s = INF
        self.stranded = []
