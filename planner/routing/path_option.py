"""A path that a lane may use next, with all data that a decision needs in one object.

`RouterState.update_lanes` builds these off the request path, so that a decision avoids many lookups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.planner.routing.lanes.path import PathState


@dataclass(slots=True, eq=False)
class PathOption:
    """A path that a lane may use.

    path: index of the path.
    tail, median: profiled seconds by rows.
    max_rows, merge_rows: see `LaneState`.
    last: whether this is the fastest path, which needs no safety margin, as there is no faster alternative.
    after_rejection: whether to try it even if a path of higher value left too little time for the rest of the
        queue. Not if a mix of two others is better (prices.py): with all paths tried, simulated random
        loads 15 and 17 make .976 and .965 of the best static path's information instead of 1.001 and .988.
    outweighs_speed: whether its quality is worth more than what faster paths would save
        (policies/near_paths.py).
    """

    path: int
    tail: list[float]
    median: list[float]
    max_rows: int
    merge_rows: int
    last: bool
    after_rejection: bool
    outweighs_speed: bool = False


def path_options(
    order: Sequence[int], paths: Sequence[PathState], max_rows: list[int], merge_rows: list[int]
) -> list[PathOption]:
    """Returns options for the paths in `order`, in the same order. max_rows, merge_rows: by path index."""
    found = []
    for p in order:
        path = paths[p]
        latency = path.latency
        found.append(
            PathOption(p, latency.tail, latency.median, max_rows[p], merge_rows[p], False, path.efficient)
        )
    if found:
        final = found[-1]
        final.last = final.after_rejection = True
    return found
