"""The search for capacity: the highest rate that meets the SLO, in geometric steps.

Rates come out, verdicts go in, so that several searches can take turns in one run and noise hits all alike.
Noise on the machine can only make a rate look too high: a rate counts as missed after `tries` misses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt


@dataclass(slots=True)
class CapacitySearch:
    """A search for the highest rate that meets the SLO: grows, then bisects.

    first: the first rate. precision: ends when met and missed rates are within this factor.

    tries: misses of a rate before it is given up. max_verdicts: verdicts in all.
    """

    first: float
    precision: float = 1.06
    growth: float = 2.0
    tries: int = 2
    max_verdicts: int = 24
    lowest: float = 1.0
    highest: float = 100_000.0
    met: float | None = None
    missed: float | None = None
    verdicts: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def is_growing(self) -> bool:
        """True while no rate was too high: a short run is enough."""
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
            return rate if rate >= self.lowest else None
        return None if self.missed <= self.met * self.precision else sqrt(self.met * self.missed)

    def record(self, rate: float, met: bool) -> None:
        """Adds the verdict on a rate that was tried."""
        self.verdicts.append((rate, met))
        if met:
            self.met = rate if self.met is None else max(rate, self.met)
        elif self._given_up(rate):
            self.missed = rate if self.missed is None else min(rate, self.missed)

    def _given_up(self, rate: float) -> bool | None:
        """True if the rate was missed often enough; None if its last verdict was good."""
        verdicts = [met for r, met in self.verdicts if r == rate]
        return None if not verdicts or verdicts[-1] else len(verdicts) >= self.tries
