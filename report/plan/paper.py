"""The paper that all pictures are drawn on: colours, axes, the way to a PNG."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from polyrec.report.comparison.axes import FONT, LIGHT, Theme, ticks

DPI = 150
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#0b7285", "#57606a")


def colour(i: int) -> str:
    """Of the i-th thing."""
    return COLOURS[i % len(COLOURS)]


def figure(width: float, height: float, theme: Theme = LIGHT) -> Figure:
    """A figure that lays itself out."""
    made = Figure((width, height), dpi=DPI, facecolor=theme.page, layout="constrained")
    FigureCanvasAgg(made)
    return made


def plain(axes: Axes, theme: Theme = LIGHT, grid: bool = True) -> None:
    """No frame but left and bottom, quiet ticks."""
    axes.set_facecolor(theme.page)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(color=theme.grid, linewidth=0.8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
    axes.tick_params(colors=theme.faint, labelsize=FONT - 1.5, length=3)


def log_axis(axes: Axes, which: str, low: float, high: float) -> None:
    """A logarithmic axis with round numbers on it."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_major_locator(FixedLocator(ticks(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def png(made: Figure) -> bytes:
    """The picture, as the bytes of a PNG."""
    out = io.BytesIO()
    made.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
