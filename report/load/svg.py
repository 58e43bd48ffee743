"""A chart as SVG: text that a browser draws, in the colours of the page it stands on, light or dark."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from math import log10

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.report.load.chart import Chart, Series, label, ticks

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 74, 14, 14, 42
MOST_DOTS = 40

Scale = Callable[[float], float]


def svg(chart: Chart) -> str:
    """One <svg> element. Colours are the page's variables --c0, --c1, ..., --grid, --faint, --bad."""
    x_low, x_high = chart.x_range
    y_low, y_high = chart.y_range

    def x(value: float) -> float:
        return LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        if chart.log:
            share = (log10(max(value, y_low)) - log10(y_low)) / (log10(y_high) - log10(y_low))
        else:
            share = (value - y_low) / (y_high - y_low)
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(chart.title)}: {escape(chart.says)}">'
    ]
    levels = ticks(y_low, y_high, chart.log)
    step = levels[1] - levels[0] if len(levels) > 1 else 1.0
    for tick in levels:
        at = y(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        words = label(tick, chart.percent, step)
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{words}</text>')
    for tick in ticks(x_low, x_high):
        at = x(tick)
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">'
            f"{label(tick)}</text>"
        )
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="name" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(chart.x_name)}</text>'
    )
    centre = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="name y-name" transform="translate(13 {centre}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_name)}</text>"
    )
    parts += _layers(chart, x, y) if chart.kind == "layers" else [_line(s, x, y) for s in chart.series]
    for at_x, words in chart.marks:
        at = x(at_x)
        parts.append(f'<path class="mark" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="mark-name" x="{at + 4:.1f}" y="{TOP + 11}">{escape(words)}</text>')
    if chart.limit is not None:
        at = y(chart.limit.y)
        parts.append(f'<path class="limit" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="limit-name" x="{WIDTH - RIGHT - 4}" y="{at - 5:.1f}" text-anchor="end">'
            f"{escape(chart.limit.name)}</text>"
        )
    return "".join([*parts, "</svg>"])


def legend(chart: Chart) -> str:
    """Names and colours; nothing for a chart of one line."""
    if len(chart.series) < 2 and chart.kind == "lines":
        return ""
    items = "".join(
        f'<li><i style="background:var(--c{s.colour})"></i>{escape(s.name)}</li>' for s in chart.series
    )
    return f'<ul class="legend">{items}</ul>'


def _line(series: Series, x: Scale, y: Scale) -> str:
    """A path, broken where there is nothing to draw; where points are few, each is a dot."""
    runs = _runs(np.isfinite(series.y) & np.isfinite(series.x))
    drawn = []
    for first, end in runs:
        points = [f"{x(series.x[i]):.1f} {y(series.y[i]):.1f}" for i in range(first, end)]
        drawn.append("M" + "L".join(points) + ("h.01" if len(points) == 1 else ""))
    line = f'<path class="line" style="stroke:var(--c{series.colour})" d="{"".join(drawn)}"/>'
    if series.x.size > MOST_DOTS:
        return line
    there = [i for first, end in runs for i in range(first, end)]
    dots = [f'<circle cx="{x(series.x[i]):.1f}" cy="{y(series.y[i]):.1f}" r="3"/>' for i in there]
    return f'{line}<g style="fill:var(--c{series.colour})">{"".join(dots)}</g>'


def _layers(chart: Chart, x: Scale, y: Scale) -> list[str]:
    below: F64 = np.zeros(chart.series[0].y.size) if chart.series else np.zeros(0)
    parts = []
    for s in chart.series:
        above = below + np.nan_to_num(s.y)
        up = [f"{x(a):.1f} {y(b):.1f}" for a, b in zip(s.x, above, strict=True)]
        down = [f"{x(a):.1f} {y(b):.1f}" for a, b in zip(s.x[::-1], below[::-1], strict=True)]
        parts.append(f'<path class="layer" style="fill:var(--c{s.colour})" d="M{"L".join(up + down)}Z"/>')
        below = above
    return parts


def _runs(there: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """[first, end) of each stretch that is there."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], there.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
