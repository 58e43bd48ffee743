"""A path that a lane may dispatch on next, with everything that a decision reads in one place.

Built by `RouterState.update_lanes`, off the request path, so that a decision reads fields instead of looking
each one up where it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.planner.routing.lanes.path import PathState


@dataclass(slots=True, eq=False)
class PathOption:
    """A path of a lane, as a decision reads it.

    path: its index. tail, median: profiled seconds by rows. max_rows, merge_rows: as in `LaneState`.

    last: the fastest path, for which the plain tail is enough, as nothing faster is left. after_rejection:
    tried even if a path of higher value left too little room for the rest of the queue.
    """

    path: int
    tail: list[float]
    median: list[float]
    max_rows: int
    merge_rows: int
    last: bool
    after_rejection: bool


def path_options(
    order: Sequence[int], paths: Sequence[PathState], max_rows: list[int], merge_rows: list[int]
) -> list[PathOption]:
    """Options of the paths in `order`, which is kept. max_rows, merge_rows: by path index."""
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
