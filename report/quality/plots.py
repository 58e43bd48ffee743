"""Plots quality against cost.

Each model is a point with its name beside it. Its bar is the confidence interval of its difference from the
baseline, drawn from the baseline's height: a bar that does not reach the dashed line is a real difference.
(The models' separate intervals are far wider, and hide what the paired ones show.) Models of equal cost are
drawn side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from polyrec.models.amounts import size
from polyrec.models.evaluation.comparison import LOWER_IS_BETTER, Bools, Metric, pareto
from polyrec.models.schema.batch import F64
from polyrec.report.chart import DPI, FONT, Theme, log_axis, new_figure, style_axes
from polyrec.report.quality import labels
from polyrec.report.quality.comparison import ModelComparison, ModelEntry
from polyrec.report.quality.wording import NAMES, mflop

CostName = Literal["bytes", "mflop"]
WIDTH, HEIGHT = 7.5, 4.8
POINT = DPI / 72
"""Pixels of a typographic point."""
MARKER = 7.5
LONGEST_BAR = 50
"""Characters of the legend's second part that fit beside its first."""
RADIUS = (MARKER / 2 + 1) * POINT


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost of a model. axis: name of the axis. of: returns its value. show: formats a value."""

    name: str
    axis: str
    of: Callable[[ModelEntry], float]
    show: Callable[[float], str]


COSTS: dict[CostName, Cost] = {
    "bytes": Cost("size", "bytes of rows and net", lambda e: float(e.bytes.total), size),
    "mflop": Cost("arithmetic", "MFLOP a row", lambda e: float(e.flops.total), mflop),
}


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture: a metric against a cost."""

    metric: Metric
    cost: CostName

    @property
    def file(self) -> str:
        """File name in the report's folder."""
        return f"{self.metric.replace('_', '-')}-{self.cost}.png"

    @property
    def title(self) -> str:
        return f"{NAMES[self.metric][0].upper()}{NAMES[self.metric][1:]} against {COSTS[self.cost].name}"


PLOTS = (Plot("log_loss", "bytes"), Plot("auc", "bytes"), Plot("log_loss", "mflop"), Plot("auc", "mflop"))


@dataclass(frozen=True, slots=True)
class Points:
    """The models of a picture whose metric is defined.

    labels: names. cost, quality: float64 [n]. bars: float64 [n, 2], their ends. front: bool [n], on the
    Pareto front.
    baseline: the baseline's quality; None if there is nothing to compare.
    """

    labels: list[str]
    cost: F64
    quality: F64
    bars: F64
    front: Bools
    baseline: float | None


def points(comparison: ModelComparison, plot: Plot) -> Points:
    """Returns the models of a picture."""
    shown = [e for e in comparison.entries if np.isfinite(e.standing.metrics[plot.metric].value)]
    several = len(comparison.entries) > 1
    origins = [e.standing.metrics[plot.metric].value for e in shown if e.label == comparison.baseline]
    baseline = origins[0] if several and origins else None
    bars = []
    for e in shown:
        own, difference = e.standing.metrics[plot.metric], (e.standing.to_baseline or {}).get(plot.metric)
        if baseline is None:
            bars.append((own.low, own.high))
        elif difference is None:
            bars.append((own.value, own.value))
        else:
            bars.append((baseline + difference.low, baseline + difference.high))
    cost = np.array([COSTS[plot.cost].of(e) for e in shown], np.float64)
    quality = np.array([e.standing.metrics[plot.metric].value for e in shown], np.float64)
    on_front = pareto(cost, -quality if plot.metric in LOWER_IS_BETTER else quality)
    ends = np.array(bars, np.float64).reshape(-1, 2)
    return Points([e.label for e in shown], cost, quality, ends, on_front, baseline)


def front(comparison: ModelComparison, plot: Plot) -> list[str]:
    """Returns the models that no other beats in both the plot's metric and its cost, cheapest first."""
    p = points(comparison, plot)
    order = np.argsort(p.cost, kind="stable")
    return [p.labels[i] for i in order if p.front[i]]


def draw(comparison: ModelComparison, plot: Plot, theme: Theme) -> Figure:
    """Draws one plot."""
    p = points(comparison, plot)
    figure = new_figure(WIDTH, HEIGHT, theme)
    axes = figure.add_subplot()
    better = "lower" if plot.metric in LOWER_IS_BETTER else "higher"
    _scale(axes, COSTS[plot.cost], f"{NAMES[plot.metric]} ({better} is better)", theme, p)
    figure.suptitle(_legend(comparison), size=FONT - 1, color=theme.faint, x=0.02, ha="left")
    if p.labels:
        # positions in pixels are only known after the layout is drawn
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        _fill(canvas, axes, p, theme)
    return figure


def _scale(axes: Axes, cost: Cost, metric: str, theme: Theme, p: Points) -> None:
    """Sets scales, limits, ticks and names, so that all points and bars are inside, with space for labels.

    Bytes use a log scale, as do operations that span more than a factor of ten.
    """
    x, y = p.cost, np.concatenate((p.quality, p.bars.ravel()))
    log = x.size > 0 and x.min() > 0 and (cost is COSTS["bytes"] or x.max() > 10 * x.min())
    style_axes(axes, theme, x=cost.axis + (" (log scale)" if log else ""), y=metric)
    if not x.size:
        return
    if log:
        margin = max(float(x.max() / x.min()) ** 0.15, 1.15)
        log_axis(axes, "x", float(x.min()) / margin, float(x.max()) * margin, cost.show)
    else:
        margin = max(0.15 * float(np.ptp(x)), 0.1 * float(x.max()))
        axes.set_xlim(max(float(x.min()) - margin, 0.0), float(x.max()) + margin)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: cost.show(value)))
    margin = max(0.12 * float(np.ptp(y)), 1e-5)
    axes.set_ylim(float(y.min()) - margin, float(y.max()) + margin)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.ticklabel_format(axis="y", useOffset=False)


def _legend(comparison: ModelComparison) -> str:
    percent = f"{100 * comparison.level:g}%"
    if len(comparison.entries) == 1:
        return f"bar: {percent} interval"
    front = "\N{BLACK CIRCLE} on the Pareto front   \N{WHITE CIRCLE} beaten by another in both"
    bar = f"bar: {percent} interval of the difference to {comparison.baseline} (dashed line)"
    return f"{front}{chr(10) if len(bar) > LONGEST_BAR else '      '}{bar}"


def _fill(canvas: FigureCanvasAgg, axes: Axes, p: Points, theme: Theme) -> None:
    to_pixels = axes.transData.transform
    to_data = axes.transData.inverted().transform
    at = to_pixels(np.stack((p.cost, p.quality), axis=1))
    at[:, 0] = labels.spread_apart(at[:, 0], 1.7 * RADIUS)
    x, y = to_data(at).T
    lines = []
    if p.baseline is not None:
        axes.axhline(p.baseline, color=theme.faint, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        frame = axes.get_window_extent()
        level = to_pixels((p.cost[0], p.baseline))[1]
        lines.append(_boxes(np.array([[frame.x0, level]]), np.array([[frame.x1, level]]), POINT))
    best = np.flatnonzero(p.front)[np.argsort(at[p.front, 0], kind="stable")]
    corners = np.stack((np.repeat(at[best, 0], 2)[1:], np.repeat(at[best, 1], 2)[:-1]), axis=1)
    axes.plot(*to_data(corners).T, color=theme.color(0), linewidth=1.2, alpha=0.5, zorder=2)
    lines.append(_boxes(corners[:-1], corners[1:], POINT))
    for i in range(len(p.labels)):
        color = theme.color(0) if p.front[i] else theme.faint
        face = color if p.front[i] else theme.page
        axes.plot([x[i], x[i]], p.bars[i], color=color, linewidth=1.8, solid_capstyle="butt", zorder=3)
        axes.plot(x[i], y[i], "o", ms=MARKER, mfc=face, mec=color, mew=1.6, zorder=4)
    low, high = (to_pixels(np.stack((x, p.bars[:, end]), axis=1)) for end in (0, 1))
    obstacles = np.concatenate((_boxes(at, at, RADIUS), _boxes(low, high, 1.5 * POINT)))
    _write(canvas, axes, p.labels, at, obstacles, np.concatenate(lines), theme)


def _write(
    canvas: FigureCanvasAgg,
    axes: Axes,
    names: list[str],
    at: F64,
    obstacles: F64,
    lines: F64,
    theme: Theme,
) -> None:
    """Writes the names beside their points (`at`, pixels), with a thin line to distant ones."""
    halo = [withStroke(linewidth=2.5, foreground=theme.page)]
    texts = [
        axes.text(0, 0, name, size=FONT, color=theme.text, va="bottom", zorder=6, path_effects=halo)
        for name in names
    ]
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    extents = [text.get_window_extent(renderer) for text in texts]
    margin = np.array([3.0, 1.0]) * POINT
    sizes = np.array([(e.width, e.height) for e in extents]) + 2 * margin
    inside = axes.get_window_extent()
    frame = (inside.x0, inside.y0, inside.x1, inside.y1)
    corners = labels.place(at, sizes, obstacles, lines, frame, 1.2 * RADIUS)
    to_data = axes.transData.inverted().transform
    for text, point, corner, extent in zip(texts, at, corners, sizes, strict=True):
        left, bottom = to_data(corner + margin)
        text.set_position((float(left), float(bottom)))
        edge = np.clip(point, corner, corner + extent)
        if np.hypot(*(edge - point)) > 2.5 * RADIUS:
            axes.plot(*to_data(np.stack((point, edge))).T, color=theme.faint, linewidth=0.7, zorder=2)


def _boxes(start: F64, end: F64, thick: float) -> F64:
    """Returns boxes [n, 4] around straight lines between points, `thick` to every side."""
    low, high = np.minimum(start, end) - thick, np.maximum(start, end) + thick
    return np.concatenate((low, high), axis=1)
