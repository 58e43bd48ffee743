"""Predicts the seconds that a row takes on a lane's path, at the sizes of queries that arrive now."""

from __future__ import annotations

from collections.abc import Sequence

from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.lanes.path import PathState
from polyrec.planner.routing.latency.front_cost import FrontCost
from polyrec.planner.routing.observed_traffic import ObservedTraffic


class RowTimes:
    """Seconds per row of the queries that arrive, by lane and path, as corrected now."""

    __slots__ = ("_front", "_observed", "_paths")

    def __init__(self, paths: Sequence[PathState], front: FrontCost, observed: ObservedTraffic) -> None:
        self._paths, self._front, self._observed = paths, front, observed

    def lane_s(
        self, lane: LaneState, path: int, max_rows: int | None = None, sizes: Sequence[int] | None = None
    ) -> float:
        """Returns seconds of lane time per row, in merged batches of min(merge_rows, max_rows) rows.

        sizes: rows of the queries, by default of all that arrive.
        """
        batch_rows = lane.merge_rows[path]
        if max_rows is not None and max_rows < batch_rows:
            batch_rows = max_rows
        sizes = sizes or self._observed.size_groups
        seconds = self._paths[path].latency.mean_row_s(sizes, batch_rows, lane.max_rows[path])
        seconds *= lane.correction.undisturbed[path]
        if lane.inline:
            seconds += self._front.row_s + self._front.query_s / self._observed.mean_rows
        return seconds

    def elapsed_s(
        self, lane: LaneState, path: int, max_rows: int | None = None, sizes: Sequence[int] | None = None
    ) -> float:
        """Returns elapsed seconds per row, which are more than `lane_s` if others use its time or core."""
        return self.lane_s(lane, path, max_rows, sizes) / lane.available

    def rate(self, lane: LaneState) -> float:
        """Returns the rows/s of a lane that executes each query on the fastest of its options.

        That is not always the last option, which may be the fastest only in smaller batches (path_order.py).
        """
        sizes = self._observed.size_groups
        usual = [rows for rows in sizes if rows < lane.large_rows]
        large = [rows for rows in sizes if rows >= lane.large_rows]
        seconds = 0.0
        for options, group in ((lane.options, usual), (lane.large_options, large)):
            if group:
                seconds += sum(group) * min(self.elapsed_s(lane, o.path, sizes=group) for o in options)
        return sum(sizes) / seconds
