"""The pace of a core: measured beside a live run in, what the simulator's core does out.

A virtual core whose neighbors come and go is half as fast again in one second as in the next. A simulation
at one pace, that of the calibration, then misses what a live server does by as much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyrec.models.schema.batch import F64


@dataclass(frozen=True, slots=True)
class Pace:
    """From at_s[i] on, ascending, work takes factor[i] times what it took at the calibration.

    Both float64 [moments], one at least; before the first moment as from there on.
    """

    at_s: F64
    factor: F64

    def __post_init__(self) -> None:
        if not self.at_s.size or self.at_s.shape != self.factor.shape:
            raise ValueError(f"a pace of {self.at_s.size} moments and {self.factor.size} factors")
        if not (np.diff(self.at_s) >= 0).all() or not (self.factor > 0).all():
            raise ValueError("the moments of a pace ascend, and its factors are positive")


EVEN = Pace(np.zeros(1), np.ones(1))
"""Always that of the calibration."""
