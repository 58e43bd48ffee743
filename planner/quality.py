"""Values an answered row by its path: measured qualities, and the differences between them that were shown.

Quality is information gain on test rows, 1 - NE, unless the operator chose another metric. Test rows are a
sample, so a difference counts only if its paired interval excludes zero; paths without a shown difference
are worth the same, and the cheaper one wins at every load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.files import Strict

QualityMetric = Literal["information", "auc", "mrr", "ndcg", "accuracy"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
LEAST_WORTH = 0.01
"""Value of a row by a path no better than a constant, as a share of the best: it answers only where nothing
else can, since a client prefers a poor answer to none."""


class QualityDifference(Strict):
    """Quality of `path` minus that of `other`, with its 95% interval. kind: how the interval was found.

    paired: a bootstrap of the same test rows. unpaired: from the two standard errors, which is wider. given:
    by the operator, exact. assumed: the same model, another precision.
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
    """Groups paths without a shown difference to the best one of their group, best group first.

    "Not shown different" is not transitive, so groups are formed from the top: the best path with all that
    are not shown worse than it, then the same among the rest. A pair without an entry differs by face value.
    The first of each group is its best.
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
    """Returns what an answered row of each path is worth, above 0: the quality of the best of its group.

    A path of unknown quality (None) is worth as much as the worst known one.
    """
    known = {name: q for name, q in quality.items() if q is not None}
    values = {name: known[group[0]] for group in quality_groups(known, differences) for name in group}
    least = min(values.values(), default=1.0)
    values |= {name: least for name, q in quality.items() if q is None}
    best = max(values.values(), default=1.0)
    if best <= 0:
        # no path beats a constant: only their order is left to route by
        return {name: max(1 + value, LEAST_WORTH) for name, value in values.items()}
    return {name: max(value, LEAST_WORTH * best) for name, value in values.items()}


def differences_of(
    names: Iterable[str], differences: Iterable[QualityDifference]
) -> tuple[QualityDifference, ...]:
    """Returns the differences between two of these paths."""
    kept = set(names)
    return tuple(d for d in differences if d.path in kept and d.other in kept)


def given_differences(
    quality: Mapping[str, float], given: Mapping[str, float], differences: Iterable[QualityDifference]
) -> tuple[QualityDifference, ...]:
    """Returns the differences after some qualities were given by the operator; those are exact.

    quality: of all paths, the given values included.
    """
    kept = [d for d in differences if d.path not in given and d.other not in given]
    for path, other in combinations(quality, 2):
        if path in given or other in given:
            by = quality[path] - quality[other]
            kept.append(QualityDifference(path=path, other=other, value=by, low=by, high=by, kind="given"))
    return tuple(kept)
