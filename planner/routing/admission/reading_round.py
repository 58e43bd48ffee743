"""A round of reading: what the owner's loop offers before it comes to execute anything.

Nothing is executed before its end, so the door judges by when that is foreseen; and who asks for no less than
one whom this round has refused is refused like it, without being looked at.
"""

from __future__ import annotations

from polyrec.planner.routing.query import Refused

INF = float("inf")


class Reading:
    """One round after another. refused: what a query of this one was told, for others as well; rows: its."""

    __slots__ = ("_begun_s", "_deadline_s", "_over_s", "_size", "going_on", "refused", "rows")

    def __init__(self) -> None:
        self.going_on = False
        self._begun_s = self._over_s = 0.0
        self.refused: Refused | None = None
        self._size = self._deadline_s = 0.0
        self.rows = 1

    def over_s(self, arrival_s: float, now_s: float, busy: float) -> float:
        """When the round will be over, as it looks with one more query, of arrival_s; not before now.

        It takes as long as reading what came since the earliest of its queries. busy: share of time for that.
        """
        if not self.going_on:
            self.going_on = True
            self._begun_s = self._over_s = now_s
        begun_s = self._begun_s
        over_s = begun_s + (begun_s - arrival_s) * busy
        if over_s > self._over_s:
            self._over_s = over_s
        else:
            over_s = self._over_s
        return over_s if over_s > now_s else now_s

    def end(self) -> None:
        self.going_on = False
        self.refused = None

    def refuse(self, refused: Refused, size: float, deadline_s: float, rows: int) -> None:
        """A query of that size and deadline was refused. The smallest of a round stands for others."""
        if self.refused is None or size < self._size:
            self.refused, self._size, self._deadline_s, self.rows = refused, size, deadline_s, rows

    def rows_of(self, size: float) -> float:
        """How many rows a query of that size has, if it is like the one that was refused."""
        return self.rows * (size / self._size) if size < INF else INF

    def refuses(self, size: float, deadline_s: float) -> bool:
        """Whether a query was refused in this round that is no larger and has no less time."""
        return self.refused is not None and size >= self._size and deadline_s <= self._deadline_s
