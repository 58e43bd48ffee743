"""Determines the quality of each path, and the differences between paths.

Quality is measured on test rows with each path, or taken from the test figures in the bundles. With test
rows, the intervals of differences are paired (one bootstrap, the same rows for all paths). From bundles they
derive from the models' standard errors, which makes them wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyrec.measure.profile.candidates import Candidate
from polyrec.measure.profile.log import SampleLog
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.manifest import NET, with_width
from polyrec.models.data.split import NAMES, Splitter
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.evaluation.comparison import LEVEL, percentiles, samples, widened
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.progress import Phase
from polyrec.models.schema.batch import F64
from polyrec.planner.profile import ProfileError
from polyrec.planner.quality import QualityDifference, QualityMetric

TEST = (NAMES.index("test"),)
RESAMPLES = 400
DEVIATIONS = 1.96
"""Standard errors of half a 95% interval."""
MAX_LOSS = 2e-4
"""Largest loss of AUC, over the AUC in fp32, of a dense precision that is offered by default."""
NONE_GIVEN: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class PathQuality:
    """A path's quality and its origin.

    value: in the profile's metric. metrics: all known metrics.
    origin: `bundle`: test metrics of its bundle; `data`: measured on test rows with this path; `given` by the
    user; or `assumed`: metrics of another bundle or precision, explained by `note`.
    source: equal for paths whose figures come from the same bundle.
    error: standard error of value, None if unknown. resampled: value in each resample, [RESAMPLES], see
    `widened`.
    """

    value: float
    metrics: dict[str, float]
    origin: Literal["bundle", "data", "given", "assumed"]
    source: str
    note: str = ""
    error: float | None = None
    resampled: F64 | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of value, None if unknown."""
        if self.resampled is not None:
            return percentiles(self.resampled, LEVEL)
        if self.error is None:
            return None
        return self.value - DEVIATIONS * self.error, self.value + DEVIATIONS * self.error


def bundle_quality(
    candidate: Candidate,
    bundles: Mapping[str, Bundle],
    given: Mapping[str, float] = NONE_GIVEN,
    metric: QualityMetric = "information",
) -> PathQuality:
    """Returns the quality from metrics in the bundles, or given by the user by bundle label (and width).

    A derived bundle (materialized, quantized) has no metrics, so those of a bundle with the same dense net
    are used; likewise those of fp32 for other dense precisions. The note says so. Raises ProfileError if
    neither the bundle nor one with its net has the metric.
    """
    bundle, precision = candidate.bundle, candidate.path.precision
    source, notes = bundle, []
    for label, labeled in ((with_width(n, bundle.width), b) for n, b in bundles.items()):
        if labeled.files is bundle.files and label in given:
            return PathQuality(given[label], {}, "given", label, f"quality of '{label}' as given")
    if metric not in bundle.test_metrics:
        net = bundle.manifest.files[NET].sha256
        same = {n: b for n, b in bundles.items() if b.manifest.files[NET].sha256 == net}
        like = {n: at for n, b in same.items() if metric in (at := b.at_width(bundle.width)).test_metrics}
        if not like:
            raise ProfileError(
                f"bundle '{bundle.path}' has no test figure '{metric}', nor has one with the same dense net: "
                "measure it with --data FILE, or give it with --quality BUNDLE=VALUE"
            )
        label, source = next(iter(like.items()))
        notes.append(f"quality of '{label}', which has the same dense net, assumed equal")
    if precision != "fp32":
        notes.append(f"quality of {precision} dense assumed equal to that of fp32")
    metrics = source.test_metrics
    error = metrics.get("information_error") if metric == "information" else None
    return PathQuality(
        metrics[metric],
        metrics,
        "assumed" if notes else "bundle",
        f"{source.path} {source.width}",
        "; ".join(notes),
        error,
    )


def measure_quality(
    found: Sequence[Candidate],
    data: str,
    log: SampleLog,
    phase: Phase,
    metric: QualityMetric = "information",
    splitter: Splitter | None = None,
) -> dict[str, PathQuality]:
    """Measures each path on the test rows of a file; returns the quality by name, reusing results in the log.

    splitter: see `predict_all`.
    Raises DataError if the data do not fit the bundles, ProfileError if they do not define the metric.
    """
    file = Path(data)
    stamp = file.stat().st_mtime_ns if file.is_file() else 0
    what = f"{metric} on {data} {stamp}"
    groups: dict[tuple[str, str, DensePrecision], list[Candidate]] = {}
    for c in found:
        if log.get(c.name, c.identity, what) is None:
            groups.setdefault((c.path.runtime, c.path.device, c.path.precision), []).append(c)
    for (runtime, device, precision), absent in groups.items():
        made = predict_all(
            {c.name: c.bundle for c in absent},
            data,
            TEST,
            runtime=runtime,
            device=device,
            precision=precision,
            phase=phase,
            splitter=splitter,
        )
        kept = made.negatives_kept
        every = list(made.probabilities.values())
        drawn = samples(made.label, every, made.group, RESAMPLES, metrics=(metric,), negatives_kept=kept)
        drawn = widened(drawn, made.label, made.group)
        for i, c in enumerate(absent):
            figures = evaluate(every[i], made.label, made.group, kept).as_dict()
            entry = {
                "metrics": {k: float(v) for k, v in figures.items() if v is not None},
                "resampled": drawn[1:, i, 0].tolist(),
            }
            log.add(c.name, c.identity, what, entry)
    return {c.name: _measured(c, log.get(c.name, c.identity, what), data, metric) for c in found}


def losing_precisions(found: Sequence[Candidate], qualities: Mapping[str, PathQuality]) -> dict[str, str]:
    """Describes the paths whose dense precision loses more than MAX_LOSS of the AUC, by name.

    A path is compared with the fp32 paths of its bundle and width. Only figures measured with the paths
    count, since others assume that all precisions are equal.
    """
    auc: dict[tuple[Path, int | None], float] = {}
    measured = [c for c in found if qualities[c.name].origin == "data" and "auc" in qualities[c.name].metrics]
    for c in measured:
        if c.path.precision == "fp32":
            auc[c.bundle.path, c.path.width] = qualities[c.name].metrics["auc"]
    losses = {
        c.name: 1 - qualities[c.name].metrics["auc"] / auc[c.bundle.path, c.path.width]
        for c in measured
        if auc.get((c.bundle.path, c.path.width))
    }
    return {
        name: f"it loses {loss:.3%} of the AUC in fp32, more than {MAX_LOSS:.2%} (--precisions keeps it)"
        for name, loss in losses.items()
        if loss > MAX_LOSS
    }


def _measured(
    candidate: Candidate, entry: dict[str, Any] | None, data: str, metric: QualityMetric
) -> PathQuality:
    assert entry is not None
    metrics = entry["metrics"]
    if metric not in metrics:
        raise ProfileError(
            f"the test rows of '{data}' do not define '{metric}'"
            + ("; the schema names no group" if metric in ("mrr", "ndcg") else "")
        )
    drawn = np.array(entry["resampled"], np.float64)
    return PathQuality(metrics[metric], metrics, "data", candidate.name, resampled=drawn[np.isfinite(drawn)])


def quality_differences(found: Mapping[str, PathQuality]) -> tuple[QualityDifference, ...]:
    """Returns the difference of every two paths with its interval.

    Pairs with unknown errors are left out, and are then compared by their values alone.
    """
    differences = []
    for (path, a), (other, b) in combinations(found.items(), 2):
        value = a.value - b.value
        kind: Literal["paired", "unpaired", "given", "assumed"]
        if a.resampled is not None and b.resampled is not None and a.resampled.size == b.resampled.size:
            kind, (low, high) = "paired", percentiles(a.resampled - b.resampled, LEVEL)
        elif "given" in (a.origin, b.origin):
            kind, low, high = "given", value, value
        elif a.source == b.source:
            kind, low, high = "assumed", value, value
        elif a.error is not None and b.error is not None:
            half = DEVIATIONS * hypot(a.error, b.error)
            kind, low, high = "unpaired", value - half, value + half
        else:
            continue
        differences.append(
            QualityDifference(path=path, other=other, value=value, low=low, high=high, kind=kind)
        )
    return tuple(differences)
