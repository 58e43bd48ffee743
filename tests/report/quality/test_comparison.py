from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.cost import flops
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.predictions import Predictions
from polyrec.report.quality.comparison import ModelComparison, compare_models

Make = Callable[..., ModelComparison]


def test_a_comparison_holds_each_bundles_quality_cost_and_standing(bundle: Bundle) -> None:
    random = np.random.default_rng(0)
    label = (random.random(200) < 0.3).astype(np.float32)
    p = {name: random.random(200).astype(np.float32) for name in ("a", "b")}
    found = compare_models(
        {"a": bundle, "b": bundle},
        Predictions(label, None, p),
        "b",
        data="clicks.parquet",
        split="test",
        runtime="torch on cpu",
        resamples=20,
    )
    a, b = found.entries
    assert a.quality == evaluate(p["a"], label)
    assert (a.bytes.total, a.flops) == (bundle.bytes, flops(bundle))
    assert a.standing.to_baseline is not None
    assert b.standing.to_baseline is None


def test_json_has_every_number_with_its_interval_and_verdict(comparison: ModelComparison) -> None:
    read = json.loads(json.dumps(comparison.as_dict()))
    assert read["baseline"] == "table"
    assert [b["label"] for b in read["bundles"]] == ["table", "better", "worse", "same", "other"]
    by = {b["label"]: b for b in read["bundles"]}
    assert by["table"]["to_baseline"] is None
    better = by["better"]["to_baseline"]["log_loss"]
    assert better["verdict"] == "better"
    assert better["low"] <= better["value"] <= better["high"] < 0
    assert by["worse"]["to_baseline"]["auc"]["verdict"] == "worse"
    assert by["same"]["to_baseline"]["auc"]["verdict"] == "identical"
    assert by["other"]["flops_per_row"]["total"] == 101_500
    assert by["other"]["bytes"] == {"rows": 5_000_000, "net": 50_000, "total": 5_050_000}


def test_metrics_that_are_not_defined_are_null(make: Make) -> None:
    read = json.loads(json.dumps(make("a", "b", one_class=True).as_dict(), allow_nan=False))
    assert read["bundles"][1]["to_baseline"]["auc"] == {
        "value": None,
        "low": None,
        "high": None,
        "verdict": "undefined",
    }


@pytest.mark.parametrize("grouped", [False, True])
def test_grouped_rows_are_rows_of_requests(make: Make, grouped: bool) -> None:
    assert make("a", grouped=grouped).grouped == grouped
