"""The picture of a profile: what was measured, and the latency model over it, a panel a representation.

Axes are shared, so that panels compare. A colour is a path of the panel: its line is the model's median,
the band above it reaches to the 99th percentile; dots are measured medians, hollow where the model was
not fitted, small dashes the measured 99th percentiles, crosses medians with the caches emptied.
"""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from polyrec.planner.profile import PathProfile, Profile
from polyrec.report.comparison.axes import FONT, LIGHT, Theme, ticks

COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#4d2d00")
PANEL_WIDTH, PANEL_HEIGHT, DPI = 3.5, 2.9, 150
COLUMNS = 4
SHOWN_ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


def draw(profile: Profile, theme: Theme = LIGHT) -> bytes:
    """The picture, as the bytes of a PNG."""
    panels: dict[str, list[PathProfile]] = {}
    for path in profile.paths:
        panels.setdefault(f"{path.representation} on {path.path.device}", []).append(path)
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    size = (max(PANEL_WIDTH * columns, 7.5), PANEL_HEIGHT * lines + 1.1)
    figure = Figure(size, dpi=DPI, facecolor=theme.page, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    low, high = _span(profile)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for i, (axes, (name, paths)) in enumerate(zip(grid.flat, panels.items(), strict=False)):
        _prepare(axes, theme, low, high, name)
        for colour, path in zip(COLOURS * 9, paths, strict=False):
            _path(axes, path, colour, theme)
        axes.legend(
            loc="upper left", fontsize=FONT - 2, frameon=False, labelcolor=theme.text, handlelength=1.2
        )
        # with axes shared, only outer panels would have numbers: also those above an empty place
        below = i + columns >= len(panels)
        axes.tick_params(labelbottom=below)
        if below:
            axes.set_xlabel("rows of a batch", color=theme.text, size=FONT)
        if i % columns == 0:
            axes.set_ylabel("ms a batch", color=theme.text, size=FONT)
    figure.suptitle(
        f"Latency of one batch on one lane, measured on {profile.machine.devices[0].description} "
        "(both scales logarithmic)",
        size=FONT + 1,
        color=theme.text,
        x=0.01,
        ha="left",
    )
    figure.legend(
        handles=_meanings(profile, theme),
        loc="outside lower left",
        ncols=3 if columns < 3 else 6,
        fontsize=FONT - 1,
        frameon=False,
        labelcolor=theme.text,
    )
    out = io.BytesIO()
    canvas.draw()  # type: ignore[no-untyped-call]
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _path(axes: Axes, path: PathProfile, colour: str, theme: Theme) -> None:
    rows = np.unique(np.geomspace(path.latency.rows[0], path.latency.rows[-1], 200).round().astype(int))
    median = np.array([path.latency.median(int(r)) for r in rows]) * 1e3
    tail = np.array([path.latency.tail(int(r)) for r in rows]) * 1e3
    axes.plot(rows, median, color=colour, linewidth=1.4, label=path.path.name, zorder=3)
    axes.fill_between(rows, median, tail, color=colour, alpha=0.14, linewidth=0, zorder=2)
    for point in path.points:
        face = colour if point.fitted else theme.page
        axes.plot(point.rows, point.p50_s * 1e3, "o", ms=4, mfc=face, mec=colour, mew=1, zorder=4)
        axes.plot(point.rows, point.p99_s * 1e3, "_", ms=5, color=colour, mew=1, zorder=4)
    for point in path.evicted:
        axes.plot(point.rows, point.p50_s * 1e3, "x", ms=4.5, color=colour, mew=1, zorder=3)


def _prepare(axes: Axes, theme: Theme, low: float, high: float, title: str) -> None:
    axes.set_facecolor(theme.page)
    axes.set_title(title, size=FONT, color=theme.text, loc="left")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(SHOWN_ROWS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(FixedLocator(ticks(low, high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
    axes.tick_params(colors=theme.faint, labelsize=FONT - 2, length=3)


def _span(profile: Profile) -> tuple[float, float]:
    """Milliseconds that all curves and points lie within, with room for the names above them."""
    seconds = [s for p in profile.paths for s in (*p.latency.median_s, *p.latency.tail_s)]
    seconds += [s for p in profile.paths for point in p.points for s in (point.p50_s, point.p99_s)]
    seconds += [point.p50_s for p in profile.paths for point in p.evicted]
    found = [s for s in seconds if s > 0]
    return min(found) * 1e3 / 1.3, max(found) * 1e3 * 4


def _meanings(profile: Profile, theme: Theme) -> list[Line2D | Patch]:
    grey = theme.faint

    def mark(marker: str, label: str, face: str = grey) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker, color=grey, mfc=face, ms=5, label=label)

    meanings: list[Line2D | Patch] = [
        Line2D([], [], color=grey, linewidth=1.4, label="model, median"),
        Patch(color=grey, alpha=0.25, linewidth=0, label="model, up to the 99th percentile"),
        mark("o", "measured median"),
        mark("o", "the same, kept from the model", theme.page),
        mark("_", "measured 99th percentile"),
    ]
    if any(p.evicted for p in profile.paths):
        meanings.append(mark("x", "median, caches emptied"))
    return meanings
