"""A chart as data: series, axes and a limit, drawn as SVG for the page and by matplotlib for the picture."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from typing import Literal

import numpy as np

from polyrec.models.schema.batch import F64


@dataclass(frozen=True, slots=True)
class Series:
    """One line or layer. x, y: float64 [points], NaN where there is nothing to draw.

    colour: its number in the page's palette, so that one path has the same in every chart.
    """

    name: str
    x: F64
    y: F64
    colour: int


SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Limit:
    """A horizontal line that says what was promised."""

    y: float
    name: str


@dataclass(frozen=True, slots=True)
class Chart:
    """kind: `lines`, or `layers` that stand on one another. says: what to see in it, for a stranger.

    log: the y axis. y_low, y_high: where it ends, None where the values say. percent: of shares.
    marks: vertical lines, x and words.
    """

    title: str
    says: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    kind: Literal["lines", "layers"] = "lines"
    log: bool = False
    limit: Limit | None = None
    marks: tuple[tuple[float, str], ...] = ()
    y_low: float | None = 0.0
    y_high: float | None = None
    percent: bool = False

    @property
    def x_range(self) -> tuple[float, float]:
        """The least and the greatest x; (0, 1) of an empty chart."""
        every = [s.x[np.isfinite(s.x)] for s in self.series]
        joined = np.concatenate(every) if every else np.empty(0)
        if not joined.size:
            return 0.0, 1.0
        low, high = float(joined.min()), float(joined.max())
        return (low, high) if high > low else (low - 0.5, low + 0.5)

    @property
    def y_range(self) -> tuple[float, float]:
        """What the y axis shows."""
        if self.kind == "layers":
            tops = np.nansum([s.y for s in self.series], axis=0) if self.series else np.empty(0)
            values = tops[np.isfinite(tops)]
        else:
            every = [s.y[np.isfinite(s.y)] for s in self.series]
            values = np.concatenate(every) if every else np.empty(0)
        if self.log:
            values = values[values > 0]
        found = [*([float(values.min()), float(values.max())] if values.size else [])]
        if self.limit is not None:
            found.append(self.limit.y)
        low = min(found, default=0.0) if self.y_low is None or self.log else self.y_low
        high = max(found, default=1.0) if self.y_high is None else self.y_high
        if self.log:
            low = max(low, 1e-9)
            return low / 1.2, max(high, low * 2) * 1.3
        if self.y_low is None:
            # what differs by rounding only is one value: a scale fitted to it would draw a cliff
            spread = high - low if high - low > SAME * abs(high) else 0.0
            room = spread * 0.1 or abs(high) * 0.01 or 0.5
            return low - room, high + room
        return low, (high if self.y_high is not None else high * 1.06) if high > low else low + 1.0


def ticks(low: float, high: float, log: bool = False, most: int = 6) -> list[float]:
    """Round numbers in [low, high]: 1, 2 or 5 times a power of ten."""
    if log:
        decades = range(floor(log10(low)) - 1, floor(log10(high)) + 2)
        every = [m * 10.0**d for d in decades for m in (1, 2, 5)]
        inside = [t for t in every if low <= t <= high]
        return inside if len(inside) <= most + 2 else [t for t in inside if f"{t:e}"[0] == "1"]
    span = high - low
    if not isfinite(span) or span <= 0:
        return [low]
    raw = span / most
    power = 10.0 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = int(np.ceil(low / step - 1e-9))
    return [i * step for i in range(first, int(np.floor(high / step + 1e-9)) + 1)]


def label(value: float, percent: bool = False, step: float = 1.0) -> str:
    """A tick in words: as many digits as tell it from its neighbors, `step` away."""
    if percent:
        digits = max(0, ceil(-log10(100 * max(step, 1e-8)) - 1e-9))
        return f"{100 * value:.{digits}f}%"
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.6g}"
