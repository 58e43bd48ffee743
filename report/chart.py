"""Draws charts with matplotlib, in one style with a light and a dark theme.

Lines and stacked layers are described by `Chart` and drawn by `draw`. The other pictures of reports are
composed from `new_figure`, `style_axes`, `log_axis` and `add_legend`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter
from matplotlib.transforms import ScaledTranslation

from polyrec.models.schema.batch import F64
from polyrec.report.page import Picture

DPI = 150
FONT = 10.5
MAX_TICKS = 9
MAX_DOTS = 40
SAME = 1e-6
WIDTH, HEIGHT = 6.4, 3.4
"""Size of a chart in inches."""
LEGEND_BELOW = 34
"""Points from the x axis to the legend: ticks, their labels and the axis' name are between."""
LEGEND_WIDTH = 0.84 * 72 * WIDTH
LETTER, SYMBOL = 0.58, 46
"""Mean width of a letter by its size, and points of a legend's line with the space to the next name."""
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
    """Colors of a picture. colors: of series, from Okabe and Ito with additions, safe for color-blind
    readers.
    """

    page: str
    text: str
    faint: str
    grid: str
    limit: str
    colors: tuple[str, ...]

    def color(self, i: int) -> str:
        """Returns the color of the i-th series; colors repeat."""
        return self.colors[i % len(self.colors)]


LIGHT = Theme(
    "#ffffff", "#1f2328", "#5f6771", "#e4e7eb", "#a40e26",
    ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#5b5bd6", "#7d8590",
     "#222222", "#b00020"),
)  # fmt: skip
DARK = Theme(
    "#14171c", "#e6e8eb", "#9aa4b2", "#2a3038", "#ff7b72",
    ("#4aa8e8", "#ff8a3d", "#2dc79b", "#e79cc6", "#e0c04a", "#8fd0f7", "#a3a3ff", "#9aa4b2",
     "#e6e8eb", "#ff7b72"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Series:
    """One line or layer. x, y: float64 [points], NaN for a gap. color: index into the theme's colors."""

    name: str
    x: F64
    y: F64
    color: int


@dataclass(frozen=True, slots=True)
class Limit:
    """A dashed horizontal line: an SLO or a budget."""

    y: float
    name: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines, or layers stacked on one another.

    caption: what the chart shows. log: whether the y axis is logarithmic. from_zero: whether it begins at 0.
    y_high: upper end of the y axis; None: from the values. percent: y values are shares. marks: vertical
    lines, (x, label).
    """

    title: str
    caption: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    kind: Literal["lines", "layers"] = "lines"
    log: bool = False
    limit: Limit | None = None
    marks: tuple[tuple[float, str], ...] = ()
    from_zero: bool = True
    y_high: float | None = None
    percent: bool = False

    @property
    def y_range(self) -> tuple[float, float]:
        """Returns the ends of the y axis, with some space above the values."""
        shown = [s.y for s in self.series]
        if self.kind == "layers" and shown:
            shown = [np.nansum(shown, axis=0)]
        values = np.concatenate([*shown, [] if self.limit is None else [self.limit.y]])
        values = values[np.isfinite(values) & ((values > 0) | (not self.log))]
        if not values.size:
            return (0.1 if self.log else 0.0), 1.0
        low, high = float(values.min()), float(values.max())
        if self.log:
            return low / 1.2, max(high, low * 2) * 1.3
        if self.from_zero:
            return 0.0, self.y_high or high * 1.06 or 1.0
        # values that differ only by rounding count as equal, or the scale would magnify the difference
        spread = high - low if high - low > SAME * abs(high) else 0.0
        margin = spread * 0.1 or abs(high) * 0.01 or 0.5
        return low - margin, high + margin


def draw(charts: Sequence[Chart], theme: Theme = LIGHT, title: str = "") -> Figure:
    """Draws the charts in two columns, each with its title if there are several."""
    columns = min(2, len(charts))
    lines = -(-len(charts) // columns)
    figure = new_figure(WIDTH * columns, HEIGHT * lines + (0.5 if title else 0), theme, title)
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, chart in zip(grid, charts, strict=False):
        _draw_chart(axes, chart, theme, chart.title if len(charts) > 1 else "")
    for axes in grid[len(charts) :]:
        axes.set_visible(False)
    return figure


def pictures(charts: Sequence[Chart]) -> tuple[Picture, ...]:
    """Draws each chart as a separate picture in both themes."""
    return tuple(
        picture(chart.title, chart.caption, lambda theme, chart=chart: draw([chart], theme))  # type: ignore[misc]
        for chart in charts
    )


def picture(title: str, caption: str, drawing: Callable[[Theme], Figure], file: str = "") -> Picture:
    """Draws a picture in both themes."""
    return Picture(title, caption, png(drawing(LIGHT)), png(drawing(DARK)), file)


def png(figure: Figure) -> bytes:
    """Returns the bytes of a PNG, which are the same for the same figure."""
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def new_figure(width: float, height: float, theme: Theme = LIGHT, title: str = "") -> Figure:
    """Creates an empty figure, with sizes in inches and automatic layout."""
    figure = Figure((width, height), dpi=DPI, facecolor=theme.page, layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, size=FONT + 1, x=0.01, ha="left", color=theme.text)
    return figure


def style_axes(
    axes: Axes, theme: Theme = LIGHT, title: str = "", x: str = "", y: str = "", grid: bool = True
) -> None:
    """Sets colors and axis names, and removes the frame except left and bottom."""
    axes.set_facecolor(theme.page)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(color=theme.grid, linewidth=0.8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
    axes.tick_params(colors=theme.faint, labelsize=FONT - 1.5, length=3)
    axes.set_title(title, size=FONT, color=theme.text, loc="left")
    axes.set_xlabel(x, size=FONT, color=theme.text)
    axes.set_ylabel(y, size=FONT, color=theme.text)


def log_axis(
    axes: Axes,
    which: Literal["x", "y"],
    low: float,
    high: float,
    show: Callable[[float], str] = lambda value: f"{value:,.10g}",
    ticks: Sequence[float] | None = None,
) -> None:
    """Makes an axis logarithmic from low to high, with round numbers or the given ticks."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_major_locator(FixedLocator(log_ticks(low, high) if ticks is None else ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axis.set_minor_locator(NullLocator())


def log_ticks(low: float, high: float) -> list[float]:
    """Returns round numbers in [low, high], at least three if possible."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    found: F64 = np.empty(0)
    for parts in SUBDIVISIONS:
        every = np.sort(np.outer(decades, parts).ravel())
        found = every[(every >= low) & (every <= high)]
        if found.size >= 3:
            break
    return [float(v) for v in found[:: max(1, -(-found.size // MAX_TICKS))]]


def add_legend(owner: Axes | Figure, theme: Theme = LIGHT, **options: Any) -> None:
    """Adds a legend without a frame."""
    style = {"fontsize": FONT - 1.5, "frameon": False, "labelcolor": theme.text}
    owner.legend(**(style | options))


def _draw_chart(axes: Axes, chart: Chart, theme: Theme, title: str) -> None:
    style_axes(axes, theme, title, chart.x_name, chart.y_name)
    if chart.log:
        log_axis(axes, "y", *chart.y_range)
    elif chart.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if chart.kind == "layers" and chart.series:
        heights = [np.nan_to_num(s.y) for s in chart.series]
        colors = [theme.color(s.color) for s in chart.series]
        axes.stackplot(
            chart.series[0].x, heights, labels=[s.name for s in chart.series], colors=colors, alpha=0.85
        )
    else:
        for s in chart.series:
            marker = "o" if s.x.size <= MAX_DOTS else ""
            axes.plot(s.x, s.y, color=theme.color(s.color), label=s.name, linewidth=1.6, marker=marker, ms=3)
    axes.set_ylim(*chart.y_range)
    if chart.limit is not None:
        axes.axhline(chart.limit.y, color=theme.limit, linestyle="--", linewidth=1, label=chart.limit.name)
    for x, _ in chart.marks:
        axes.axvline(x, color=theme.faint, linestyle=":", linewidth=1)
    left, right = axes.get_xlim()
    for x, label in chart.marks:
        # keep labels inside the axes
        before = x > left + 0.7 * (right - left)
        axes.annotate(
            label, (x, 1), (-3 if before else 3, 0), xycoords=("data", "axes fraction"),
            textcoords="offset points", size=FONT - 2, color=theme.text, va="top",
            ha="right" if before else "left",
        )  # fmt: skip
    if len(chart.series) > 1 or chart.limit is not None:
        below = ScaledTranslation(0, -LEGEND_BELOW / 72, axes.figure.dpi_scale_trans)
        add_legend(
            axes, theme, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=axes.transAxes + below,
            ncols=_legend_columns(axes), borderaxespad=0,
        )  # fmt: skip


def _legend_columns(axes: Axes) -> int:
    """Returns the largest number of columns, up to three, in which the series' names fit a chart's width."""
    widths = [len(name) * LETTER * (FONT - 1.5) + SYMBOL for name in axes.get_legend_handles_labels()[1]]
    for columns in (3, 2):
        # a column is as wide as its longest name; names fill one column after another
        if sum(max(part) for part in np.array_split(widths, columns) if part.size) <= LEGEND_WIDTH:
            return columns
    return 1
