"""Records by how much lost queries were too slow, which tells what a faster path would have avoided."""

from __future__ import annotations

from bisect import bisect_left

EDGES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
"""Upper bounds of the classes of late shares."""


class LostTimes:
    """Lost information by the share of its time by which a query was too slow; decays."""

    __slots__ = ("_lost",)

    def __init__(self) -> None:
        self._lost = [0.0] * len(EDGES)

    @property
    def total(self) -> float:
        """All lost information."""
        return sum(self._lost)

    def record(self, late_share: float, information: float) -> None:
        """Records a lost query. late_share: excess over budget plus excess, both in seconds; 0 to 1."""
        self._lost[min(bisect_left(EDGES, late_share), len(EDGES) - 1)] += information

    def decay(self, kept: float) -> None:
        """Keeps a share of everything recorded so far."""
        self._lost = [kept * lost for lost in self._lost]

    def avoided(self, saved_share: float) -> float:
        """Returns the lost information that would have been answered, had all taken that share less time."""
        found, below = 0.0, 0.0
        for edge, lost in zip(EDGES, self._lost, strict=True):
            if saved_share <= below:
                break
            found += lost * min(1.0, (saved_share - below) / (edge - below))
            below = edge
        return found
