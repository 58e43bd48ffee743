"""Adjusts the values of paths to their measured live quality, within bounds.

Offline values come from test rows. Labels of served requests yield confidence intervals of the same
differences in live traffic. A value moves only if the interval excludes the offline difference, only to the
nearest end of the interval, and at most by a share of the best value. So values are continuous in the labels,
and the cost of wrong labels is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyrec.planner.quality import MIN_WORTH

Range = tuple[float, float]
"""Lower and upper end of an interval."""


def reference_path(values: Mapping[str, float]) -> str:
    """Returns the path that live differences refer to, which is the first with the highest offline value."""
    return max(values, key=lambda name: values[name])


def following_values(
    values: Mapping[str, float], differences: Mapping[str, Range], bound: float
) -> dict[str, float]:
    """Returns what an answered row on each path is worth, adjusted to live quality; always above 0.

    values: offline values (planner/quality.py).
    differences: interval of each path's live quality minus that of `reference_path`. The reference, and paths
        without an interval, keep their value.
    bound: maximum change of a value, as a share of the best offline value.
    """
    best = values[reference_path(values)]
    max_move = bound * best
    found: dict[str, float] = {}
    for name, value in values.items():
        known = value - best
        low, high = differences.get(name, (known, known))
        shown = low if known < low else high if known > high else known
        moved = min(max(shown - known, -max_move), max_move)
        found[name] = max(value + moved, MIN_WORTH * best) if moved else value
    return found
