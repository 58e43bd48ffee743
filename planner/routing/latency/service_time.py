"""Predicts the tail service time of a query on the fastest device, split over its lanes if it is large."""

from __future__ import annotations

from typing import NamedTuple

from polyrec.planner.routing.latency.latency_table import in_batches

INF = float("inf")


class LanePath(NamedTuple):
    """A lane with one of its paths.

    tail: seconds by rows.
    factors: the lane's corrections of tails, by path.
    merge_rows: a query with at least twice as many rows is split.
    max_rows: maximum rows of a batch.
    lanes: number of usable lanes on the device.
    """

    tail: list[float]
    factors: list[float]
    path: int
    merge_rows: int
    max_rows: int
    lanes: int


class ServiceTimes(dict[int, float]):
    """Tail seconds by rows on the fastest of the lanes; infinity without lanes.

    An entry is computed on first use, with the corrections at that time, and cached.
    """

    __slots__ = ("_lane_paths",)

    def __init__(self, lane_paths: list[LanePath]) -> None:
        self._lane_paths = lane_paths

    def copy(self) -> ServiceTimes:
        """Returns an independent copy with the current entries."""
        other = ServiceTimes(self._lane_paths)
        other.update(self)
        return other

    def __missing__(self, rows: int) -> float:
        self[rows] = seconds = service_time_s(self._lane_paths, rows)
        return seconds


def service_time_s(lane_paths: list[LanePath], rows: int) -> float:
    """Returns the currently corrected tail seconds on the fastest of the lanes; infinity without lanes."""
    best_s = INF
    for tail, factors, path, merge_rows, max_rows, lanes in lane_paths:
        if rows < 2 * merge_rows and rows <= max_rows:
            seconds = tail[rows]
        else:
            parts = min(lanes, max(1, rows // merge_rows))
            seconds = in_batches(tail, -(-rows // parts), max_rows)
        seconds *= factors[path]
        if seconds < best_s:
            best_s = seconds
    return best_s
