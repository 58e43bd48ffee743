"""Draws a profile: measured latencies and the latency model over them, one panel per representation.

Panels share axes, so that they can be compared. Each color is a path of the panel. Its line is the model's
median, and the band above reaches to the 99th percentile. Dots are measured medians, hollow if the model was
not fitted to them; small dashes are measured 99th percentiles; crosses are medians with empty caches.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from polyrec.planner.profile import PathProfile, Profile
from polyrec.report.chart import LIGHT, Theme, add_legend, log_axis, new_figure, style_axes

PANEL_WIDTH, PANEL_HEIGHT = 3.5, 2.9
COLUMNS = 4
SHOWN_ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


def draw(profile: Profile, theme: Theme = LIGHT) -> Figure:
    """Draws a panel for each representation and device."""
    panels: dict[str, list[PathProfile]] = {}
    for path in profile.paths:
        panels.setdefault(f"{path.representation} on {path.path.device}", []).append(path)
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(
        max(PANEL_WIDTH * columns, 7.5), PANEL_HEIGHT * lines + 1.1, theme,
        f"Latency of one batch on one lane, measured on {profile.machine.devices[0].description} "
        "(both scales logarithmic)",
    )  # fmt: skip
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    low, high = _span(profile)
    rows = [n for p in profile.paths for n in (*p.latency.rows, *(point.rows for point in p.points))]
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for i, (axes, (name, paths)) in enumerate(zip(grid.flat, panels.items(), strict=False)):
        # with shared axes, only outer panels show numbers; add them to panels above an empty position too
        below = i + columns >= len(panels)
        style_axes(axes, theme, name, "rows of a batch" if below else "", "" if i % columns else "ms a batch")
        log_axis(axes, "y", low, high)
        for k, path in enumerate(paths):
            _path(axes, path, theme.color(k), theme)
        log_axis(axes, "x", min(rows) / 1.2, max(rows) * 1.2, ticks=SHOWN_ROWS)
        axes.tick_params(labelbottom=below)
        add_legend(axes, theme, loc="upper left", handlelength=1.2)
    handles = _marks(profile, theme)
    add_legend(figure, theme, handles=handles, loc="outside lower left", ncols=3 if columns < 3 else 6)
    return figure


def _path(axes: Axes, path: PathProfile, color: str, theme: Theme) -> None:
    rows = np.unique(np.geomspace(path.latency.rows[0], path.latency.rows[-1], 200).round().astype(int))
    median = np.array([path.latency.median(int(r)) for r in rows]) * 1e3
    tail = np.array([path.latency.tail(int(r)) for r in rows]) * 1e3
    axes.plot(rows, median, color=color, linewidth=1.4, label=path.path.name, zorder=3)
    axes.fill_between(rows, median, tail, color=color, alpha=0.14, linewidth=0, zorder=2)
    for point in path.points:
        face = color if point.fitted else theme.page
        axes.plot(point.rows, point.p50_s * 1e3, "o", ms=4, mfc=face, mec=color, mew=1, zorder=4)
        axes.plot(point.rows, point.p99_s * 1e3, "_", ms=5, color=color, mew=1, zorder=4)
    for point in path.evicted:
        axes.plot(point.rows, point.p50_s * 1e3, "x", ms=4.5, color=color, mew=1, zorder=3)


def _span(profile: Profile) -> tuple[float, float]:
    """Returns the range of all curves and points, in milliseconds, with space for the legend above them."""
    seconds = [s for p in profile.paths for s in (*p.latency.median_s, *p.latency.tail_s)]
    seconds += [s for p in profile.paths for point in p.points for s in (point.p50_s, point.p99_s)]
    seconds += [point.p50_s for p in profile.paths for point in p.evicted]
    found = [s for s in seconds if s > 0]
    return min(found) * 1e3 / 1.3, max(found) * 1e3 * 4


def _marks(profile: Profile, theme: Theme) -> list[Line2D | Patch]:
    gray = theme.faint

    def mark(marker: str, label: str, face: str = gray) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker, color=gray, mfc=face, ms=5, label=label)

    marks: list[Line2D | Patch] = [
        Line2D([], [], color=gray, linewidth=1.4, label="model, median"),
        Patch(color=gray, alpha=0.25, linewidth=0, label="model, up to the 99th percentile"),
        mark("o", "measured median"),
        mark("o", "the same, kept from the model", theme.page),
        mark("_", "measured 99th percentile"),
    ]
    if any(p.evicted for p in profile.paths):
        marks.append(mark("x", "median, caches emptied"))
    return marks
