"""Defines shapes of a load test over time, as shares of the peak.

`share_at` maps a time to a share of the peak, or to None at the end. It is pure, so that shapes can be
plotted and tested without Locust. The shape `knee` also uses counts: it climbs while the SLO is met.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import cos, pi

KINDS = ("steady", "step", "spike", "diurnal", "knee")
LOW = 0.2
"""The base of every shape: a fifth of the peak, so that a step is to five times the load."""
SPIKE_FROM, SPIKE_TO = 0.4, 0.6
KNEE_GROWTH = 1.25
KNEE_STEPS = 12
KNEE_FIRST = KNEE_GROWTH ** -(KNEE_STEPS - 1)


def share_at(kind: str, at_s: float, seconds: float) -> float | None:
    """Returns the share of the peak at `at_s` of a test of `seconds`; None past its end.

    steady: the peak. step: low, the peak in the middle third, low. spike: low, the peak for a fifth, low.
    diurnal: a day from low to the peak and back, as a cosine.
    """
    if at_s >= seconds:
        return None
    part = at_s / seconds
    if kind == "steady":
        return 1.0
    if kind == "step":
        return 1.0 if 1 / 3 <= part < 2 / 3 else LOW
    if kind == "spike":
        return 1.0 if SPIKE_FROM <= part < SPIKE_TO else LOW
    if kind == "diurnal":
        return LOW + (1 - LOW) * (1 - cos(2 * pi * part)) / 2
    raise ValueError(f"no shape '{kind}'; there are {', '.join(KINDS)}")


@dataclass(slots=True)
class Knee:
    """Climbs to the load at which the SLO is missed: waits, measures, climbs by a quarter.

    dwell_s: time at each load; its first half is not measured. met: the highest share of the peak that met
    the SLO.
    missed: the lowest that missed it.
    """

    dwell_s: float
    share: float = KNEE_FIRST
    met: float | None = None
    missed: float | None = None
    _since_s: float = field(default=0.0, init=False)
    _before: tuple[int, int] | None = field(default=None, init=False)

    def at(self, at_s: float, requests: int, in_budget: int, slo: float) -> float | None:
        """Returns the present share of the peak, None when the knee is found. requests, in_budget: total
        counts.
        """
        dwelt = at_s - self._since_s
        if self._before is None and dwelt >= self.dwell_s / 2:
            self._before = (requests, in_budget)
        if dwelt < self.dwell_s or self._before is None or requests == self._before[0]:
            return self.share
        met = (in_budget - self._before[1]) >= slo * (requests - self._before[0])
        if not met:
            self.missed = self.share
            return None
        self.met = self.share
        if self.share >= 1.0 - 1e-9:
            return None
        self.share = min(1.0, self.share * KNEE_GROWTH)
        self._since_s, self._before = at_s, None
        return self.share
