"""Comparisons to report on: models of known quality and cost, without training any."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from polyrec.models.dlrm.cost import Bytes, Flops
from polyrec.models.evaluation.comparison import compare
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.schema.batch import F32
from polyrec.report.quality.comparison import ModelComparison, ModelEntry

Make = Callable[..., ModelComparison]


def made(*names: str, grouped: bool = False, one_class: bool = False) -> ModelComparison:
    """`better` and `worse` differ really from the first model, `same` predicts as it does."""
    random, rows = np.random.default_rng(0), 800
    truth = random.random(rows)
    label: F32 = (random.random(rows) < truth).astype(np.float32) * (not one_class)
    first = np.clip(truth + random.normal(0, 0.12, rows), 0.02, 0.98).astype(np.float32)
    predictions: dict[str, F32] = {}
    for name in names:
        noise = {"better": 0.0, "worse": 0.4}.get(name, 0.12)
        p = np.clip(truth + random.normal(0, noise, rows), 0.02, 0.98).astype(np.float32)
        predictions[name] = first if name in ("same", names[0]) else p
    groups = np.arange(rows) // 8 if grouped else None
    standings = compare(label, predictions, names[0], groups, resamples=100)
    entries = tuple(
        ModelEntry(
            name,
            f"runs/{name}",
            "table",
            f"{i:012x}",
            evaluate(p, label, groups),
            Bytes(10**6 * (i + 1), 50_000),
            Flops(0, 1_000, 500, 20_000 * (i + 1)),
            standings[name],
        )
        for i, (name, p) in enumerate(predictions.items())
    )
    return ModelComparison(
        "clicks.parquet", "test", names[0], 100, 0.95, 0, "torch on cpu", "0.0", "2026-01-01", entries
    )


@pytest.fixture(scope="session")
def make() -> Make:
    """Makes a comparison of models by these names, the first being the baseline."""
    return made


@pytest.fixture(scope="session")
def comparison(make: Make) -> ModelComparison:
    """A baseline and models that are better, worse, the same and not to be told apart."""
    return make("table", "better", "worse", "same", "other")
