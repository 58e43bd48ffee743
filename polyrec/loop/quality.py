"""Measures all paths of several plans on the same rows: the newest rows of a period of a log.

These are the test rows of the period's split by time, on which no training of the period is trained. Every
path is scored with its own runtime and dense precision, on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.evaluation.comparison import LEVEL, Interval, Metric, percentiles, samples, widened
from polyrec.models.evaluation.metrics import row_weights
from polyrec.models.evaluation.predictions import Predictions, predict_all
from polyrec.models.schema.batch import F32, F64
from polyrec.planner.plan import Plan, PlannedPath
from polyrec.planner.quality import QualityDifference, QualityMetric

RESAMPLES = 1000
Key = tuple[str, str]
"""Name of a plan, and of a path of it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Paths measured on the same rows.

    drawn: float64 [1 + RESAMPLES, paths, metrics], first over all rows, then over each resample, `widened`.
    expected: clicks that each path predicts.
    """

    rows: int
    requests: int
    clicks: int
    metrics: tuple[Metric, ...]
    expected: Mapping[Key, float]
    drawn: F64

    def interval(self, key: Key, metric: Metric = "information", less: Key | None = None) -> Interval:
        """Returns a path's metric, or its difference from `less`, with the 95% interval; NaN if undefined."""
        paths, at = list(self.expected), self.metrics.index(metric)
        values = self.drawn[:, paths.index(key), at]
        if less is not None:
            values = values - self.drawn[:, paths.index(less), at]
        resampled = values[1:][np.isfinite(values[1:])]
        if not np.isfinite(values[0]) or not resampled.size:
            return Interval(float("nan"), float("nan"), float("nan"))
        return Interval(float(values[0]), *percentiles(resampled, LEVEL))

    def best(self, plan: str) -> Key:
        """Returns the path of a plan with the highest information gain."""
        own = [key for key in self.expected if key[0] == plan]
        return max(own, key=lambda key: float(np.nan_to_num(self.interval(key).value, nan=-np.inf)))

    def differences(self, plan: str, metric: QualityMetric) -> tuple[QualityDifference, ...]:
        """Returns the differences between the paths of a plan, as a plan file stores them."""
        own = [key for key in self.expected if key[0] == plan]
        found = []
        for a, b in combinations(own, 2):
            i = self.interval(a, metric, less=b)
            if np.isfinite(i.value):
                found.append(QualityDifference(path=a[1], other=b[1], value=i.value, low=i.low, high=i.high))
        return tuple(found)


def measure(
    plans: Mapping[str, Plan], log: Path, since: str | None, until: str, metric: QualityMetric = "information"
) -> Measured:
    """Measures all paths of the plans by information gain, accuracy and `metric`. Raises PolyrecError."""
    bundles: dict[Path, Bundle] = {}
    views: dict[Key, tuple[PlannedPath, Bundle]] = {}
    for name, plan in plans.items():
        for path in plan.paths:
            if path.bundle not in bundles:
                bundles[path.bundle] = load_bundle(path.bundle)
            views[name, path.name] = path, bundles[path.bundle].at_width(path.width)
    made: Predictions | None = None
    scores: dict[Key, F32] = {}
    # paths on a GPU are executed by torch on the CPU
    ways = {key: (p.runtime if p.device == "cpu" else "torch", p.precision) for key, (p, _) in views.items()}
    schema = next(bundle for _, bundle in views.values()).encoder.schema
    splitter = fit_splitter(open_data(log, schema, "count", since, until), schema)
    for runtime, precision in dict.fromkeys(ways.values()):
        own = {" ".join(k): (k, views[k][1]) for k, way in ways.items() if way == (runtime, precision)}
        made = predict_all(
            {name: view for name, (_, view) in own.items()},
            log,
            (TEST,),
            runtime=runtime,
            precision=precision,
            on_malformed="count",
            period=(since, until),
            splitter=splitter,
        )
        scores |= {own[name][0]: p for name, p in made.probabilities.items()}
    assert made is not None
    metrics: tuple[Metric, ...] = tuple(dict.fromkeys(("information", "accuracy", metric)))
    weights = row_weights(made.label, made.negatives_kept)
    ordered: Sequence[F32] = [scores[key] for key in views]
    drawn = samples(
        made.label, ordered, made.group, RESAMPLES, metrics=metrics, negatives_kept=made.negatives_kept
    )
    return Measured(
        rows=made.label.size,
        requests=made.label.size if made.group is None else np.unique(made.group).size,
        clicks=int((made.label > 0.5).sum()),
        metrics=metrics,
        expected={key: float(scores[key] @ weights) for key in views},
        drawn=widened(drawn, made.label, made.group),
    )
