"""Paths measured on the newest rows of a log, against a simple reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyrec.loop.quality import measure
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.prediction_log.reader import PredictionLogReader
from polyrec.models.data.split import TEST
from polyrec.models.evaluation.comparison import compare
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.predictions import predict_all
from polyrec.planner.plan import Plan, PlannedPath

UNTIL = "2026-01-06"


def path(name: str, bundle: Path, **changes: object) -> PlannedPath:
    return PlannedPath.model_validate({"name": name, "bundle": bundle, "runtime": "onnx", **changes})


def test_figures_are_those_of_each_path_on_the_same_newest_rows(
    first_day: Path, bundle: Bundle, nested: Bundle
) -> None:
    one = Plan(paths=(path("a", bundle.path), path("b", bundle.path, runtime="torch", precision="bf16")))
    other = Plan(
        paths=tuple(path(f"w{w}", nested.path, width=w) for w in (4, 8)),
    )
    found = measure({"one": one, "other": other}, first_day / "log", None, UNTIL, "auc")
    assert list(found.expected) == [("one", "a"), ("one", "b"), ("other", "w4"), ("other", "w8")]
    at_width = {"w4": nested.at_width(4), "w8": nested.at_width(8)}
    made = predict_all(
        {"a": bundle, **at_width}, first_day / "log", (TEST,), runtime="onnx", period=(None, UNTIL)
    )
    for (plan, name), expected in found.expected.items():
        if name == "b":
            continue
        p = made.probabilities[name]
        reference = evaluate(p, made.label, made.group)
        assert found.interval((plan, name)).value == pytest.approx(reference.information, abs=1e-6)
        assert found.interval((plan, name), "auc").value == pytest.approx(reference.auc, abs=1e-6)
        assert expected == pytest.approx(float(p.sum()), rel=1e-5)
    assert (found.rows, found.clicks) == (made.label.size, int(made.label.sum()))
    assert found.requests == np.unique(made.group).size
    difference = found.interval(("other", "w8"), less=("one", "a"))
    (paired,) = found.differences("other", "information")
    assert difference.low < difference.value < difference.high
    assert (paired.path, paired.other) == ("w4", "w8")
    low, high = (found.interval(("one", name)).value for name in "ab")
    assert 0 < abs(low - high) < 0.05
    assert found.best("one") == ("one", "a" if low > high else "b")


def test_intervals_are_those_of_polyrec_evaluate(first_day: Path, nested: Bundle) -> None:
    plan = Plan(paths=tuple(path(f"w{w}", nested.path, width=w) for w in (4, 8)))
    found = measure({"p": plan}, first_day / "log", None, UNTIL)
    views = {f"w{w}": nested.at_width(w) for w in (4, 8)}
    made = predict_all(views, first_day / "log", (TEST,), runtime="onnx", period=(None, UNTIL))
    compared = compare(made.label, made.probabilities, "w4", made.group)
    for name, model in compared.items():
        expected = model.metrics["information"]
        interval = found.interval(("p", name))
        assert [interval.low, interval.high] == pytest.approx([expected.low, expected.high], abs=1e-6)
    difference = compared["w8"].to_baseline
    assert difference is not None
    interval = found.interval(("p", "w8"), less=("p", "w4"))
    expected = difference["information"]
    assert [interval.low, interval.high] == pytest.approx([expected.low, expected.high], abs=1e-6)


def test_newest_rows_are_the_end_of_the_period(first_day: Path, bundle: Bundle) -> None:
    plan = Plan(paths=(path("a", bundle.path),))
    whole = measure({"p": plan}, first_day / "log", None, UNTIL)
    half = measure({"p": plan}, first_day / "log", "2026-01-05T22:30", UNTIL)
    reader = PredictionLogReader(first_day / "log", bundle.manifest.schema_, until=UNTIL)
    requests = sum(requests.lengths.size for requests in reader.requests(["item"]))
    assert whole.requests == pytest.approx(0.2 * requests, abs=2)
    assert half.requests == pytest.approx(0.1 * requests, abs=2)
