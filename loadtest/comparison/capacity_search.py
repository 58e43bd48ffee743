"""The search for capacity: the highest rate that keeps the promise, in geometric steps.

Rates come out, verdicts go in; several searches can so take turns in one run, and noise hits all alike. A
neighbor on the machine can make a rate look too high, never too low: a rate counts as broken only when it
was broken `tries` times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt


@dataclass(slots=True)
class Search:
    """first: the rate to begin with. precision: ends when kept and broken rates are within this factor.

    tries: verdicts against a rate before it is given up. most: verdicts in all.
    """

    first: float
    precision: float = 1.06
    growth: float = 2.0
    tries: int = 2
    most: int = 24
    lowest: float = 1.0
    highest: float = 100_000.0
    kept: float | None = None
    broken: float | None = None
    verdicts: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def growing(self) -> bool:
        """No rate was too high yet: a coarse look is enough."""
        return self.broken is None

    @property
    def rate(self) -> float | None:
        """The rate to try next, or None when the search is over."""
        if len(self.verdicts) >= self.most:
            return None
        if self.verdicts and self._given_up(self.verdicts[-1][0]) is False:
            return self.verdicts[-1][0]
        if self.kept is None and self.broken is None:
            return self.first
        if self.broken is None:
            assert self.kept is not None
            rate = self.kept * self.growth
            return rate if rate <= self.highest else None
        if self.kept is None:
            rate = self.broken / self.growth
            return rate if rate >= self.lowest else None
        return None if self.broken <= self.kept * self.precision else sqrt(self.kept * self.broken)

    def tell(self, rate: float, kept: bool) -> None:
        """The verdict on a rate that was tried."""
        self.verdicts.append((rate, kept))
        if kept:
            self.kept = rate if self.kept is None else max(rate, self.kept)
        elif self._given_up(rate):
            self.broken = rate if self.broken is None else min(rate, self.broken)

    def _given_up(self, rate: float) -> bool | None:
        """None where the last word on it was good."""
        about = [kept for r, kept in self.verdicts if r == rate]
        return None if not about or about[-1] else len(about) >= self.tries
