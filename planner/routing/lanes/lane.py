"""A lane's specification from the plan, and the state on which routing decisions are based."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polyrec.planner.plan import LaneKind
from polyrec.planner.routing.lanes.breaker import CLOSED, Breaker
from polyrec.planner.routing.latency.correction import Correction
from polyrec.planner.routing.latency.latency_table import LatencyTable
from polyrec.planner.routing.path_option import PathOption
from polyrec.planner.routing.query import Dispatch, Part

INF = float("inf")
WAITING_MEMORY_S = 0.2
"""Seconds at work over which the share of waiting is averaged."""
MAX_WAITING = 0.9
"""Bound on the share of waiting, so that a lane that hardly ran keeps some capacity and is tried."""


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """An executor on a device."""

    name: str
    device: str
    kind: LaneKind


class FasterLane(NamedTuple):
    """A much faster lane. rate: rows/s that it would execute without the slower lane's help."""

    lane: LaneState
    rate: float


class LaneState:
    """A lane's paths, its running batch and its recent performance.

    max_rows, merge_rows: by path index, maximum rows of a batch, and rows up to which queries are merged.
    order: indexes of the paths it may use, by falling value; excludes paths that another beats in both value
        and speed, and paths faster than the one with the most value per second.
    options: the same paths with all data that a decision needs.
    large_rows, large_options: the options of queries with at least that many rows; infinity without any.
    fastest: the last path in `order`.
    rate: corrected rows/s on the last paths of both kinds of options.
    others, faster: the other usable lanes, and the lanes much faster than this one.

    free_s: predicted completion of the running batch.
    due_s: the first deadline in it.
    overdue_s: time at which the lane counts as stalled.
    stranded: parts of a stalled batch that no other lane can execute in time.
    recheck_s: when to consider the lane again if nothing happens.
    last_done_s: time of its last completion.
    mean_batch_rows: recent mean.
    busy_s: seconds of the batches that ended since the last tick.
    running_s: seconds until the last tick of the batch that was running then; `utilization` has them already.
    waited_s: beside them, seconds in which its batches waited for a CPU that other programs used; known only
        for an inline lane.
    utilization: recent share of time at work, including these waits.
    share: share of its time that other models leave (sharing/machine_time.py), 1 without other models.
    """

    __slots__ = (
        "alive", "breaker", "busy_s", "correction", "device", "due_s", "faster", "fastest", "free_s",
        "in_flight", "index", "inline", "large_options", "large_rows", "last_done_s", "max_rows",
        "mean_batch_rows", "merge_rows", "name", "options", "order", "others", "overdue_s", "paths", "rate",
        "recheck_s", "running_s", "share", "stranded", "utilization", "waited_s",
    )  # fmt: skip

    def __init__(
        self, index: int, spec: LaneSpec, device: int, paths: list[int], latencies: Sequence[LatencyTable]
    ) -> None:
        """Creates an idle lane. paths: indexes of the paths it may execute. latencies: of all paths."""
        self.index, self.name, self.device = index, spec.name, device
        self.inline = spec.kind == "inline"
        self.paths = paths
        self.order: list[int] = []
        self.options: list[PathOption] = []
        self.others: list[LaneState] = []
        self.faster: list[FasterLane] = []
        self.large_rows = INF
        self.large_options: list[PathOption] = []
        self.fastest = -1
        self.rate = 0.0
        self.max_rows = [1] * len(latencies)
        self.merge_rows = [1] * len(latencies)
        self.correction = Correction(latencies)
        self.breaker = Breaker()
        self.alive = True
        self.share = 1.0
        self.in_flight: Dispatch | None = None
        self.free_s = 0.0
        self.due_s = self.overdue_s = self.recheck_s = INF
        self.stranded: list[Part] = []
        self.last_done_s = 0.0
        self.busy_s = self.waited_s = self.running_s = self.utilization = 0.0
        self.mean_batch_rows = 1.0

    @property
    def usable(self) -> bool:
        """Whether the lane is alive and its breaker is closed."""
        return self.alive and self.breaker.state is CLOSED

    @property
    def available(self) -> float:
        """Share of the lane's time in which it can execute: what other models and other programs leave."""
        return self.share * (1 - self.correction.waiting)

    def options_for(self, rows: int) -> list[PathOption]:
        """Returns the options of a query with this many rows, by falling value."""
        return self.options if rows < self.large_rows else self.large_options

    def stalled_s(self, now_s: float) -> float:
        """Returns for how many seconds an abandoned batch has been executing; 0 if there is none."""
        batch = self.in_flight
        if not self.alive or batch is None or not batch.lost:
            return 0.0
        return now_s - batch.started_s

    def tick(self, now_s: float, passed_s: float, weight: float) -> None:
        """Updates utilization and correction. weight: EWMA weight of the time since the last tick."""
        running_s = 0.0 if self.in_flight is None else now_s - self.in_flight.started_s
        # 0 if the batch that ran at the last tick failed
        all_s = max(0.0, self.busy_s + self.waited_s + running_s - self.running_s)
        self.running_s = running_s
        self.utilization += weight * (min(1.0, all_s / passed_s) - self.utilization)
        waiting = self.correction.waiting
        if all_s > 0:
            waited_share = min(MAX_WAITING, self.waited_s / all_s)
            waiting += min(1.0, all_s / WAITING_MEMORY_S) * (waited_share - waiting)
        else:
            waiting -= weight * waiting
        self.correction.tick(now_s, passed_s, max(1, round(self.mean_batch_rows)), waiting)
        self.busy_s = self.waited_s = 0.0

    def release(self, now_s: float) -> None:
        """Ends the running batch, which was completed or abandoned."""
        self.in_flight = None
        self.free_s = now_s
        self.due_s = self.overdue_s = INF
        self.stranded = []
