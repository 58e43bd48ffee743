"""A query's own time: seconds at the tail, split over the lanes of the fastest device if it is large.

Lanes come in, each with the path in question; the least of their times goes out.
"""

from __future__ import annotations

from polyrec.planner.routing.latency.latency_table import in_batches

Taker = tuple[list[float], list[float], int, int, int, int]
"""A lane on one of its paths: (tail by rows, the lane's corrections of tails by path, path, rows beyond which
a query is split, most rows of a batch, usable lanes of its device).
"""
INF = float("inf")


class Own(dict[int, float]):
    """Seconds by rows, at the tail, on the fastest of the lanes; infinity if there is none.

    Computed when they are first asked for, with the corrections of that moment, and kept as they are.
    """

    __slots__ = ("_takers",)

    def __init__(self, takers: list[Taker]) -> None:
        self._takers = takers

    def copy(self) -> Own:
        """As it is now; what is computed in the copy is not kept here."""
        other = Own(self._takers)
        other.update(self)
        return other

    def __missing__(self, rows: int) -> float:
        self[rows] = seconds = own_s(self._takers, rows)
        return seconds


def own_s(takers: list[Taker], rows: int) -> float:
    """Seconds of `rows` rows on the fastest of them, as corrected now; infinity if there is none."""
    best = INF
    for tail, factors, path, merge, most, lanes in takers:
        if rows < 2 * merge and rows <= most:
            seconds = tail[rows]
        else:
            parts = min(lanes, max(1, rows // merge))
            seconds = in_batches(tail, -(-rows // parts), most)
        seconds *= factors[path]
        if seconds < best:
            best = seconds
    return best
