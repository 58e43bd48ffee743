"""The axes of a picture: a cost to the right, a metric upwards, and the colours of both themes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from polyrec.models.amounts import size
from polyrec.models.schema.batch import F64
from polyrec.report.comparison.document import Entry
from polyrec.report.comparison.words import mflop

CostName = Literal["bytes", "mflop"]
FONT = 10.5
MOST_TICKS = 9
SUBDIVISIONS: tuple[tuple[float, ...], ...] = (
    (1,),
    (1, 3),
    (1, 2, 5),
    (1, 1.5, 2, 3, 5, 7),
    tuple(np.arange(1, 10, 0.5)),
    tuple(np.arange(1, 10, 0.1)),
)


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a picture. front: models on the Pareto front; beaten: the others."""

    page: str
    text: str
    faint: str
    grid: str
    front: str
    beaten: str


LIGHT = Theme("#ffffff", "#1f2328", "#5f6771", "#e4e7eb", "#0969da", "#7d8590")
DARK = Theme("#14171c", "#e6e8eb", "#9aa4b2", "#2a3038", "#6cb6ff", "#8b949e")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a picture's models cost. of: its value for a model; show: a value in words."""

    words: str
    axis: str
    of: Callable[[Entry], float]
    show: Callable[[float], str]


COSTS: dict[CostName, Cost] = {
    "bytes": Cost("size", "bytes of rows and net", lambda e: float(e.bytes.total), size),
    "mflop": Cost("arithmetic", "MFLOP a row", lambda e: float(e.flops.total), mflop),
}


def prepare(axes: Axes, cost: Cost, metric: str, theme: Theme, x: F64, y: F64) -> None:
    """Scales, limits, ticks and names, so that all of x and y is inside, with room for labels.

    Bytes are drawn on a log scale, and so is arithmetic that spans more than a factor of ten.
    """
    axes.set_facecolor(theme.page)
    axes.set_ylabel(metric, color=theme.text, size=FONT)
    axes.grid(color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
    axes.tick_params(colors=theme.faint, labelsize=FONT - 1, which="both", length=3)
    log = x.size > 0 and x.min() > 0 and (cost is COSTS["bytes"] or x.max() > 10 * x.min())
    axes.set_xlabel(cost.axis + (" (log scale)" if log else ""), color=theme.text, size=FONT)
    if not x.size:
        return
    if log:
        room = max(float(x.max() / x.min()) ** 0.15, 1.15)
        low, high = float(x.min()) / room, float(x.max()) * room
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(ticks(low, high)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        room = max(0.15 * float(np.ptp(x)), 0.1 * float(x.max()))
        low, high = max(float(x.min()) - room, 0.0), float(x.max()) + room
        axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: cost.show(value)))
    room = max(0.12 * float(np.ptp(y)), 1e-5)
    axes.set_ylim(float(y.min()) - room, float(y.max()) + room)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.ticklabel_format(axis="y", useOffset=False)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high` for a log scale: at least three, where so few suffice."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    found: F64 = np.empty(0)
    for parts in SUBDIVISIONS:
        every = np.sort(np.outer(decades, parts).ravel())
        found = every[(every >= low) & (every <= high)]
        if found.size >= 3:
            break
    return [float(v) for v in found[:: max(1, -(-found.size // MOST_TICKS))]]
