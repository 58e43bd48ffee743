"""Charts as one picture, for places that show no HTML. Needs matplotlib, of the extra `report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyrec.models.errors import PolyrecError
from polyrec.report.load.chart import Chart
from polyrec.report.load.page import LIGHT


def save_png(charts: Sequence[Chart], path: Path, title: str) -> None:
    """Draws the charts in two columns. Raises PolyrecError where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PolyrecError("pictures need matplotlib: pip install 'polyrec[report]'") from None
    rows = -(-len(charts) // 2)
    figure = Figure(figsize=(13, 3.9 * rows + 0.6), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    axes = np.atleast_1d(figure.subplots(rows, 2 if len(charts) > 1 else 1)).ravel()
    for i, axis in enumerate(axes):
        if i < len(charts):
            _draw(axis, charts[i])
        else:
            axis.set_visible(False)
    figure.savefig(path)


def _draw(axis: Any, chart: Chart) -> None:
    colours = [LIGHT[s.colour] for s in chart.series]
    if chart.kind == "layers" and chart.series:
        heights = [np.nan_to_num(s.y) for s in chart.series]
        axis.stackplot(
            chart.series[0].x, heights, labels=[s.name for s in chart.series], colors=colours, alpha=0.85
        )
    else:
        for s, colour in zip(chart.series, colours, strict=True):
            axis.plot(s.x, s.y, color=colour, label=s.name, linewidth=1.8, marker="o", markersize=2.5)
    if chart.limit is not None:
        axis.axhline(chart.limit.y, color="#a40e26", linestyle="--", linewidth=1, label=chart.limit.name)
    for at, words in chart.marks:
        axis.axvline(at, color="#5f6771", linestyle=":", linewidth=1)
        axis.annotate(words, (at, 1), xycoords=("data", "axes fraction"), fontsize=8, va="top")
    if chart.log:
        axis.set_yscale("log")
    axis.set_ylim(*chart.y_range)
    if chart.percent:
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.6g}%")
    axis.set_title(chart.title, fontsize=11, loc="left")
    axis.set_xlabel(chart.x_name)
    axis.set_ylabel(chart.y_name)
    axis.grid(color="#e6e9ed", linewidth=0.8)
    axis.set_axisbelow(True)
    if len(chart.series) > 1 or chart.limit is not None:
        axis.legend(fontsize=8, frameon=False)
