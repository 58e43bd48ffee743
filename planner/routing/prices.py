"""Computes prices of device time, as the dual of a small linear program over the observed traffic.

router_state.py calls `solve_prices` on every tick. Rows arrive at a rate, and each executes on one path or is
rejected; an executed row earns the path's value, and each lane of a device provides one second per second.
With values v, seconds per row c and number of lanes L,

    maximize  sum v[p] x[p]   with  sum over p of d  c[p] x[p] <= L[d]  for each device,  sum x[p] <= rate.

The dual has one variable for the demand (u, the value of one more row) and one per device (its price). For a
given u, a device's price is the most that a second of its time could earn above u. So the dual is a convex,
piecewise linear function of u alone, with its minimum at one of few corners, which gives an exact solution
without a solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

VALUE_TOLERANCE = 1e-6
"""Paths tie if their value minus price differs by at most this much per row."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in the unit of values. device: of one more second of a lane, by device. row: of one more row."""

    device: tuple[float, ...]
    row: float

    def net_value(self, device: int, value: float, row_s: float) -> float:
        """Returns a row's value on a path minus the price of its device time."""
        return value - self.device[device] * row_s

    def highest_value(self, device: int, paths: Sequence[tuple[float, float]]) -> float:
        """Returns the highest value of a device's paths that are worth their price, 0 without paths.

        paths: (value, seconds per row).
        """
        net = [self.net_value(device, value, row_s) for value, row_s in paths]
        least = max(net, default=0.0) - VALUE_TOLERANCE
        return max((value for (value, _), n in zip(paths, net, strict=True) if n >= least), default=0.0)


def is_efficient(value: float, row_s: float, paths: Sequence[tuple[float, float]]) -> bool:
    """Whether no mix of a faster and a slower path, of the same mean seconds per row, has more value.

    paths: (value, seconds per row) of the device's paths.
    """
    faster = [(v, s) for v, s in paths if s < row_s]
    slower = [(v, s) for v, s in paths if s > row_s]
    return all(
        value >= low + (high - low) * (row_s - fast_s) / (slow_s - fast_s)
        for low, fast_s in faster
        for high, slow_s in slower
    )


def solve_prices(
    rate: float, lanes: Sequence[float], paths: Sequence[Sequence[tuple[float, float]]]
) -> Prices:
    """Returns the prices at `rate` rows/s.

    lanes: number of lanes, by device.
    paths: (value, seconds per row) of each path, by device.
    """
    corners = {0.0}
    for on_device in paths:
        for i, (value, row_s) in enumerate(on_device):
            corners.add(value)
            for other, other_s in on_device[:i]:
                if row_s != other_s:
                    at = (value * other_s - other * row_s) / (other_s - row_s)
                    if 0 < at < value:  # otherwise neither earns more than u there
                        corners.add(at)

    def prices(u: float) -> list[float]:
        return [max((max(0.0, (v - u) / s) for v, s in on_device), default=0.0) for on_device in paths]

    def dual(u: float) -> float:
        return rate * u + sum(n * p for n, p in zip(lanes, prices(u), strict=True))

    # among minima that are equal up to rounding, the highest u gives the lowest prices
    duals = {u: dual(u) for u in corners}
    least = min(duals.values()) * (1 + 1e-12)
    row = max(u for u, value in duals.items() if value <= least)
    return Prices(tuple(prices(row)), row)
