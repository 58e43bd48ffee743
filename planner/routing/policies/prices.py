"""Prices of device time: the dual of a small linear program over the observed mix.

Rows arrive at a rate and each is executed on one path, or on none; a path's accuracy is what an executed
row is worth; a device's lanes have so many seconds a second. With v the values, c the seconds a row costs and
L the lanes,

    maximize  sum v[p] x[p]   with  sum over p of d  c[p] x[p] <= L[d]  for each device,  sum x[p] <= rate.

Its dual has one variable for the demand (u, what another row would bring) and one a device (its price), and
for a given u the prices follow: the best that a second of the device could earn above u. So the dual is a
convex, piecewise linear function of u alone, with its minimum at one of its corners, which are few: exact,
and no solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """device: correct predictions that a lane's second is worth; row: what one more row would bring."""

    device: tuple[float, ...]
    row: float

    def earns(self, device: int, value: float, row_s: float) -> float:
        """A row's value on a path, less its price."""
        return value - self.device[device] * row_s


def price(rate: float, lanes: Sequence[float], options: Sequence[Sequence[tuple[float, float]]]) -> Prices:
    """Prices at `rate` rows/s. lanes: of each device; options: of each device, (value, seconds a row)."""
    corners = {0.0}
    for own in options:
        for i, (value, row_s) in enumerate(own):
            corners.add(value)
            for other, other_s in own[:i]:
                if row_s != other_s:
                    at = (value * other_s - other * row_s) / (other_s - row_s)
                    if at > 0:
                        corners.add(at)

    def prices(u: float) -> list[float]:
        return [max((max(0.0, (v - u) / s) for v, s in own), default=0.0) for own in options]

    def dual(u: float) -> float:
        return rate * u + sum(n * p for n, p in zip(lanes, prices(u), strict=True))

    # Of equal minima the highest u: the lowest prices that explain the optimum.
    row = min(corners, key=lambda u: (dual(u) * (1 + 1e-12), -u))
    return Prices(tuple(prices(row)), row)


def capacity(lanes: Sequence[float], options: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Rows/s that all devices do on their cheapest paths."""
    return sum(n / min(s for _, s in own) for n, own in zip(lanes, options, strict=True) if own)
