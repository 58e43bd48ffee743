"""Lets the values of paths follow their measured live quality, within bounds.

Offline values come from test rows. Labels of served requests give intervals of the same differences now. A
value moves only if the interval excludes what was known before, then only to its nearest end, and never by
more than a share of the best value: so values are continuous in the labels, and wrong labels cost a bounded
amount.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyrec.planner.quality import LEAST_WORTH

Range = tuple[float, float]
"""Lower and upper end of an interval."""


def reference_path(values: Mapping[str, float]) -> str:
    """Returns the path that live differences are to: the first of the highest offline value."""
    return max(values, key=lambda name: values[name])


def following_values(
    values: Mapping[str, float], differences: Mapping[str, Range], bound: float
) -> dict[str, float]:
    """Returns what an answered row of each path is worth after its live quality is considered, above 0.

    values: offline (planner/quality.py). differences: of live quality to that of `reference_path`, by path;
    paths without one, and the reference, keep their value. bound: most that a value moves, as a share of
    the best offline value.
    """
    best = values[reference_path(values)]
    most = bound * best
    found: dict[str, float] = {}
    for name, value in values.items():
        known = value - best
        low, high = differences.get(name, (known, known))
        shown = low if known < low else high if known > high else known
        moved = min(max(shown - known, -most), most)
        found[name] = max(value + moved, LEAST_WORTH * best) if moved else value
    return found
