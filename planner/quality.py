"""Computes what an answered row is worth on each path, from measured qualities and significant differences.

Quality is information gain (1 - NE) on test rows, unless the operator chose another metric. Test rows are a
sample, so a difference counts only if its paired interval excludes zero. Paths without a significant
difference are worth the same, so the cheaper one wins at every load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.files import Strict

QualityMetric = Literal["information", "auc", "mrr", "ndcg", "accuracy"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
MIN_WORTH = 0.01
"""Value of a path no better than a constant prediction, as a share of the best path's value. It is above 0 so
that the path answers if no other can, since clients prefer a poor answer to none."""


class QualityDifference(Strict):
    """Quality of `path` minus that of `other`, with its 95% interval.

    kind: how the interval was found. `paired`: bootstrap over the same test rows. `unpaired`: from the two
        standard errors, which is wider. `given`: exact value from the operator. `assumed`: same model in
        another precision.
    """

    path: str
    other: str
    value: Finite
    low: Finite
    high: Finite
    kind: Literal["paired", "unpaired", "given", "assumed"] = "paired"

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def quality_groups(
    quality: Mapping[str, float], differences: Iterable[QualityDifference] = ()
) -> list[list[str]]:
    """Groups paths that are not significantly different from the best of their group, best group first.

    Not being significantly different is not transitive, so groups are formed from the top: the best path with
    all paths not significantly worse, then the same among the remaining paths. A pair without an entry counts
    as different. The first path of each group is its best.
    """
    shown: dict[tuple[str, str], bool] = {}
    for d in differences:
        shown[d.path, d.other] = shown[d.other, d.path] = d.shown
    left = sorted(quality, key=lambda name: -quality[name])
    groups = []
    while left:
        best = left[0]
        group = [n for n in left if n == best or not shown.get((best, n), quality[n] < quality[best])]
        left = [n for n in left if n not in group]
        groups.append(group)
    return groups


def routing_values(
    quality: Mapping[str, float | None], differences: Iterable[QualityDifference] = ()
) -> dict[str, float]:
    """Returns what an answered row on each path is worth: the quality of the best path in its group, above 0.

    A path of unknown quality (None) is worth as much as the worst known path.
    """
    known = {name: q for name, q in quality.items() if q is not None}
    values = {name: known[group[0]] for group in quality_groups(known, differences) for name in group}
    least = min(values.values(), default=1.0)
    values |= {name: least for name, q in quality.items() if q is None}
    best = max(values.values(), default=1.0)
    if best <= 0:
        # no path beats a constant prediction, so only their order matters
        return {name: max(1 + value, MIN_WORTH) for name, value in values.items()}
    return {name: max(value, MIN_WORTH * best) for name, value in values.items()}


def differences_of(
    names: Iterable[str], differences: Iterable[QualityDifference]
) -> tuple[QualityDifference, ...]:
    """Returns the differences between two of these paths."""
    kept = set(names)
    return tuple(d for d in differences if d.path in kept and d.other in kept)


def differences_from_given(
    quality: Mapping[str, float], given: Mapping[str, float], differences: Iterable[QualityDifference]
) -> tuple[QualityDifference, ...]:
    """Returns the differences after the operator gave some qualities, which count as exact.

    quality: of all paths, including the given values.
    """
    kept = [d for d in differences if d.path not in given and d.other not in given]
    for path, other in combinations(quality, 2):
        if path in given or other in given:
            by = quality[path] - quality[other]
            kept.append(QualityDifference(path=path, other=other, value=by, low=by, high=by, kind="given"))
    return tuple(kept)
