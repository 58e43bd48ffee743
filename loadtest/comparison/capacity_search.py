"""Searches for capacity: the highest rate that meets the SLO, in geometric steps.

`rate` returns the next rate to try, `record` takes the verdict on it, so that several searches can take turns
in one run and noise affects all of them alike. One good run leads the search upward, but what it ends with
and what it gives up have the same number of verdicts, so that neither a lucky nor an unlucky run decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

LOWEST_RATE = 1.0
"""Requests/s below which no capacity is searched."""


@dataclass(slots=True)
class CapacitySearch:
    """A search for the highest rate that meets the SLO; grows, bisects, then confirms.

    first: the first rate. precision: ends when met and missed rates are within this factor.
    tries: misses of a rate until it is given up, and good runs until it is confirmed.
    max_verdicts: maximum number of verdicts; the rate met may be unconfirmed if they run out.
    """

    first: float
    precision: float = 1.06
    growth: float = 2.0
    tries: int = 2
    max_verdicts: int = 24
    highest: float = 100_000.0
    verdicts: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def met(self) -> float | None:
        """The highest rate that was met and not given up."""
        missed = self.missed
        return max((r for r, met in self.verdicts if met and (missed is None or r < missed)), default=None)

    @property
    def missed(self) -> float | None:
        """The lowest rate that was given up."""
        return min((r for r, _ in self.verdicts if self._count(r, False) >= self.tries), default=None)

    @property
    def is_growing(self) -> bool:
        """Whether no rate was too high so far; a short run then suffices."""
        return self.missed is None

    @property
    def rate(self) -> float | None:
        """The rate to try next, or None when the search is over."""
        if len(self.verdicts) >= self.max_verdicts:
            return None
        if not self.verdicts:
            return self.first
        last, last_met = self.verdicts[-1]
        met, missed = self.met, self.missed
        if not last_met and (missed is None or last < missed):
            return last
        if missed is None:
            assert met is not None
            rate = met * self.growth
            return rate if rate <= self.highest else None
        if met is None:
            rate = missed / self.growth
            return rate if rate >= LOWEST_RATE else None
        if missed > met * self.precision:
            return sqrt(met * missed)
        return met if self._count(met, True) < self.tries else None

    def record(self, rate: float, met: bool) -> None:
        """Adds the verdict on a rate that was tried."""
        self.verdicts.append((rate, met))

    def _count(self, rate: float, met: bool) -> int:
        return self.verdicts.count((rate, met))
