"""Prices of device time: the dual of a small linear program over the observed traffic.

Rows arrive at a rate and each is executed on one path, or on none; an executed row is worth the path's
value; each lane of a device has one second per second. With v the values, c the seconds a row costs and L the
lanes,

    maximize  sum v[p] x[p]   with  sum over p of d  c[p] x[p] <= L[d]  for each device,  sum x[p] <= rate.

Its dual has one variable for the demand (u, the value of another row) and one for each device (its price).
For a given u, a device's price is the most that a second of it could earn above u. So the dual is a convex,
piecewise linear function of u alone with its minimum at one of its few corners: exact without a solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """In the values' unit. device: by device, of one more second of a lane; row: of one more row."""

    device: tuple[float, ...]
    row: float

    def net_value(self, device: int, value: float, row_s: float) -> float:
        """Returns a row's value on a path minus the price of its device time."""
        return value - self.device[device] * row_s


def solve_prices(
    rate: float, lanes: Sequence[float], paths: Sequence[Sequence[tuple[float, float]]]
) -> Prices:
    """Returns the prices at `rate` rows/s.

    By device: lanes, their number; paths, (value, seconds per row) of each.
    """
    corners = {0.0}
    for on_device in paths:
        for i, (value, row_s) in enumerate(on_device):
            corners.add(value)
            for other, other_s in on_device[:i]:
                if row_s != other_s:
                    at = (value * other_s - other * row_s) / (other_s - row_s)
                    if 0 < at < value:  # elsewhere neither is worth more than u
                        corners.add(at)

    def prices(u: float) -> list[float]:
        return [max((max(0.0, (v - u) / s) for v, s in on_device), default=0.0) for on_device in paths]

    def dual(u: float) -> float:
        return rate * u + sum(n * p for n, p in zip(lanes, prices(u), strict=True))

    # Of equal minima, up to rounding, the highest u: the lowest prices that explain the optimum.
    duals = {u: dual(u) for u in corners}
    least = min(duals.values()) * (1 + 1e-12)
    row = max(u for u, value in duals.items() if value <= least)
    return Prices(tuple(prices(row)), row)
