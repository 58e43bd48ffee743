"""Searches for capacity: the highest rate that meets the SLO, in geometric steps.

`rate` returns the next rate to try, `record` takes the verdict on it, so that several searches can take turns
in one run and noise affects all of them alike. Noise on the machine can only make a rate look too high, so a
rate counts as missed only after `tries` misses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

LOWEST_RATE = 1.0
"""Requests/s below which no capacity is searched."""


@dataclass(slots=True)
class CapacitySearch:
    """A search for the highest rate that meets the SLO; grows, then bisects.

    first: the first rate. precision: ends when met and missed rates are within this factor.
    tries: misses of a rate until it is given up. max_verdicts: maximum number of verdicts.
    """

    first: float
    precision: float = 1.06
    growth: float = 2.0
    tries: int = 2
    max_verdicts: int = 24
    highest: float = 100_000.0
    met: float | None = None
    missed: float | None = None
    verdicts: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def is_growing(self) -> bool:
        """Whether no rate was too high so far; a short run then suffices."""
        return self.missed is None

    @property
    def rate(self) -> float | None:
        """The rate to try next, or None when the search is over."""
        if len(self.verdicts) >= self.max_verdicts:
            return None
        if self.verdicts and self._given_up(self.verdicts[-1][0]) is False:
            return self.verdicts[-1][0]
        if self.met is None and self.missed is None:
            return self.first
        if self.missed is None:
            assert self.met is not None
            rate = self.met * self.growth
            return rate if rate <= self.highest else None
        if self.met is None:
            rate = self.missed / self.growth
            return rate if rate >= LOWEST_RATE else None
        return None if self.missed <= self.met * self.precision else sqrt(self.met * self.missed)

    def record(self, rate: float, met: bool) -> None:
        """Adds the verdict on a rate that was tried."""
        self.verdicts.append((rate, met))
        if met:
            self.met = rate if self.met is None else max(rate, self.met)
        elif self._given_up(rate):
            self.missed = rate if self.missed is None else min(rate, self.missed)

    def _given_up(self, rate: float) -> bool | None:
        """Returns True if the rate was missed often enough; None if its last verdict was good."""
        verdicts = [met for r, met in self.verdicts if r == rate]
        return None if not verdicts or verdicts[-1] else len(verdicts) >= self.tries
