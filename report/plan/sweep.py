"""Draws the frontier of a sweep: goodput and quality against the first axis, one line per other
combination.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from polyrec.planner.deployment.sweep import Axis, SweepPoint
from polyrec.report.chart import FONT, LIGHT, add_legend, log_axis, new_figure, style_axes

NAMES = {"slo": "SLO, ms", "rate": "traffic, queries/s", "cores": "CPU cores"}
MB = 1e6


def draw(points: Sequence[SweepPoint], axes: Sequence[Axis]) -> Figure:
    """Draws panels of goodput, quality and, if prices are known, cost."""
    priced = any(p.cost_per_million is not None for p in points)
    infeasible = any(p.shares is None for p in points)
    first, others = axes[0], axes[1:]
    against = NAMES.get(first.key, first.key.replace(".", " of "))
    figure = new_figure(
        13.5 if priced else 10.5, 4.6,
        title=f"Plans against {against}{'; a cross: no plan is feasible' if infeasible else ''}",
    )  # fmt: skip
    panels = figure.subplots(1, 3 if priced else 2)
    titles = ["goodput: 1,000 rows/s within the SLO", "quality of the answers"]
    for panel, title in zip(panels, [*titles, "cost of a million predictions"], strict=False):
        style_axes(panel, title=title)
        _scale(panel, first)
    for k, combination in enumerate(product(*(a.values for a in others))):
        wanted = dict(zip([a.key for a in others], combination, strict=True))
        line = [p for p in points if all(p.values[key] == v for key, v in wanted.items())]
        line.sort(key=lambda p: p.values[first.key])
        label = ", ".join(f"{a.key} {a.show(v)}" for a, v in zip(others, combination, strict=True))
        found = [p for p in line if p.shares is not None]
        x = [_at(first, p.values[first.key]) for p in found]
        # draw thinner lines over wider ones, so that coinciding lines are all visible
        wide = 2.6 - 0.5 * (k % 4)
        style = {"color": LIGHT.color(k), "linewidth": wide, "marker": "o", "ms": 2 + 2 * wide}
        panels[0].plot(x, [p.rows_per_s / 1e3 for p in found], label=label or None, **style)
        panels[1].plot(x, [p.quality or 0.0 for p in found], **style)
        if priced:
            panels[2].plot(x, [p.cost_per_million for p in found], **style)
        crosses = [_at(first, p.values[first.key]) for p in line if p.shares is None]
        panels[0].plot(crosses, [0] * len(crosses), "x", color=LIGHT.color(k), ms=7, mew=1.8, clip_on=False)
    for panel in (panels[0], *panels[2:]):
        panel.set_ylim(bottom=0)
    panels[1].ticklabel_format(axis="y", useOffset=False)
    if others:
        handles, labels = panels[0].get_legend_handles_labels()
        add_legend(figure, handles=handles, labels=labels, loc="outside lower left", ncols=4)
    return figure


def _at(axis: Axis, value: float) -> float:
    return value / MB if axis.key.startswith("memory.") else value


def _scale(panel: Axes, axis: Axis) -> None:
    values = [_at(axis, v) for v in axis.values]
    low, high = min(values), max(values)
    name = NAMES.get(axis.key)
    if name is None:
        kind, _, device = axis.key.partition(".")
        name = f"memory of {device}, MB" if kind == "memory" else f"number of {device}"
    if high >= 8 * low:
        log_axis(panel, "x", low / 1.15, high * 1.15)
        name += " (log scale)"
        if len(values) <= 8:
            panel.xaxis.set_major_locator(FixedLocator(values))
    elif len(values) <= 8:
        panel.xaxis.set_major_locator(FixedLocator(values))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    panel.set_xlabel(name, size=FONT, color=LIGHT.text)
