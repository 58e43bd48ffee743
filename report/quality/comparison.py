"""Compares models on the same rows: quality, cost, and the standing of each against a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.cost import Bytes, Flops, flops, sizes
from polyrec.models.evaluation.comparison import LEVEL, METRICS, RESAMPLES, ComparedModel, Interval, compare
from polyrec.models.evaluation.metrics import Quality, evaluate
from polyrec.models.evaluation.predictions import Predictions
from polyrec.models.version import code_version


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model. label: its name in the report. path: path of its bundle."""

    label: str
    path: str
    representation: str
    version: str
    quality: Quality
    bytes: Bytes
    flops: Flops
    standing: ComparedModel

    def as_dict(self) -> dict[str, Any]:
        """Returns a JSON-serializable dict; undefined values are None."""
        return {
            "bundle": self.path,
            "label": self.label,
            "representation": self.representation,
            "version": self.version,
            **self.quality.as_dict(),
            "bytes": self.bytes.as_dict(),
            "flops_per_row": self.flops.as_dict(),
            "intervals": {metric: _interval(self.standing.metrics[metric]) for metric in METRICS},
            "to_baseline": None
            if self.standing.to_baseline is None
            else {
                metric: _interval(interval) | {"verdict": self.standing.verdict(metric)}
                for metric, interval in self.standing.to_baseline.items()
            },
        }


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """A whole comparison. level: level of the confidence intervals. made: ISO 8601 time in UTC."""

    data: str
    split: str
    baseline: str
    resamples: int
    level: float
    seed: int
    runtime: str
    code_version: str
    made: str
    entries: tuple[ModelEntry, ...]

    @property
    def grouped(self) -> bool:
        """Whether the rows belong to requests."""
        return self.entries[0].quality.groups is not None

    def as_dict(self) -> dict[str, Any]:
        """Returns the content of `report.json`; JSON-serializable."""
        scalars = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "entries"}
        return scalars | {"bundles": [entry.as_dict() for entry in self.entries]}


def compare_models(
    bundles: Mapping[str, Bundle],
    predictions: Predictions,
    baseline: str,
    data: str,
    split: str,
    runtime: str,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> ModelComparison:
    """Measures and compares models. bundles, predictions, baseline: by the labels of the report."""
    p = predictions
    standings = compare(p.label, p.probabilities, baseline, p.group, resamples, LEVEL, seed, p.negatives_kept)
    entries = tuple(
        ModelEntry(
            label=label,
            path=str(bundle.path),
            representation=bundle.name,
            version=bundle.manifest.version,
            quality=evaluate(p.probabilities[label], p.label, p.group, p.negatives_kept),
            bytes=sizes(bundle),
            flops=flops(bundle),
            standing=standings[label],
        )
        for label, bundle in bundles.items()
    )
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return ModelComparison(
        data, split, baseline, resamples, LEVEL, seed, runtime, code_version(), made, entries
    )


def _interval(interval: Interval) -> dict[str, Any]:
    return {k: v if math.isfinite(v) else None for k, v in asdict(interval).items()}
