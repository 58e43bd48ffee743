"""The frontier of a sweep: goodput and accuracy against the first axis, a line for each other combination."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from polyrec.planner.deployment.sweep import Axis, Point
from polyrec.report.comparison.axes import FONT, LIGHT
from polyrec.report.plan.paper import colour, figure, log_axis, plain, png

WORDS = {"slo": "promise, ms", "rate": "traffic, queries/s", "cores": "CPU cores"}
SIZES = 1e6


def draw(points: Sequence[Point], axes: Sequence[Axis]) -> bytes:
    """The picture, as the bytes of a PNG."""
    priced = any(p.cost_per_million is not None for p in points)
    made = figure(10.5 if not priced else 13.5, 4.6)
    panels = made.subplots(1, 3 if priced else 2)
    first, others = axes[0], axes[1:]
    titles = ["goodput: 1,000 rows/s within the promise", "accuracy of what is answered, %"]
    for panel, title in zip(panels, [*titles, "cost of a million predictions"], strict=False):
        plain(panel)
        panel.set_title(title, size=FONT, loc="left", color=LIGHT.text)
        _scale(panel, first)
    for k, combination in enumerate(product(*(a.values for a in others))):
        wanted = dict(zip([a.key for a in others], combination, strict=True))
        own = [p for p in points if all(p.values[key] == v for key, v in wanted.items())]
        own.sort(key=lambda p: p.values[first.key])
        label = ", ".join(f"{a.key} {a.show(v)}" for a, v in zip(others, combination, strict=True))
        found = [p for p in own if p.shares is not None]
        x = [_at(first, p.values[first.key]) for p in found]
        # thinner ones over wider ones, so that lines that coincide are both seen
        wide = 2.6 - 0.5 * (k % 4)
        style = {"color": colour(k), "linewidth": wide, "marker": "o", "ms": 2 + 2 * wide}
        panels[0].plot(x, [p.rows_per_s / 1e3 for p in found], label=label or None, **style)
        panels[1].plot(x, [100 * (p.accuracy or 0.0) for p in found], **style)
        if priced:
            panels[2].plot(x, [p.cost_per_million for p in found], **style)
        for p in own:
            if p.shares is None:
                panels[0].plot(
                    _at(first, p.values[first.key]), 0, "x", color=colour(k), ms=7, mew=1.8, clip_on=False
                )
    panels[0].set_ylim(bottom=0)
    panels[1].ticklabel_format(axis="y", useOffset=False)
    if priced:
        panels[2].set_ylim(bottom=0)
    if others:
        made.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower left",
            ncols=4,
            fontsize=FONT - 1,
            frameon=False,
        )
    none = "; a cross: no plan can do it" if any(p.shares is None for p in points) else ""
    made.suptitle(
        f"What plans give against {WORDS.get(first.key, first.key.replace('.', ' of '))}{none}",
        size=FONT + 1, x=0.01, ha="left", color=LIGHT.text,
    )  # fmt: skip
    return png(made)


def _at(axis: Axis, value: float) -> float:
    return value / SIZES if axis.key.startswith("memory.") else value


def _scale(panel: Axes, axis: Axis) -> None:
    values = [_at(axis, v) for v in axis.values]
    low, high = min(values), max(values)
    words = WORDS.get(axis.key)
    if words is None:
        kind, _, device = axis.key.partition(".")
        words = f"memory of {device}, MB" if kind == "memory" else f"number of {device}"
    if high >= 8 * low:
        log_axis(panel, "x", low / 1.15, high * 1.15)
        words += " (log scale)"
        if len(values) <= 8:
            panel.xaxis.set_major_locator(FixedLocator(values))
    elif len(values) <= 8:
        panel.xaxis.set_major_locator(FixedLocator(values))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    panel.set_xlabel(words, size=FONT, color=LIGHT.text)
