"""An option: a path that a lane may take next, with all that a decision asks of it in one place.

Built when lanes are counted (`Board.count`), off the request path. A decision goes through a lane's options,
the most accurate first, and reads fields instead of looking each of them up where it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.planner.routing.lanes.path import PathState


@dataclass(slots=True, eq=False)
class Option:
    """path: its index. tail, median: seconds by rows, as profiled. most, merge: rows, as in `LaneState`.

    last: of it no more than its tail is asked, since nothing faster is left. tried: also where a more
    accurate one has left no room for the rest.
    """

    path: int
    tail: list[float]
    median: list[float]
    most: int
    merge: int
    last: bool
    tried: bool


def options(
    order: Sequence[int], paths: Sequence[PathState], most: list[int], merge: list[int]
) -> list[Option]:
    """Of paths in the order in which they are tried; most, merge: by path index."""
    found = []
    for p in order:
        path = paths[p]
        curve = path.curve
        found.append(Option(p, curve.tail, curve.median, most[p], merge[p], False, path.efficient))
    if found:
        final = found[-1]
        final.last = final.tried = True
    return found
