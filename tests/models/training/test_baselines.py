from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION, fit_splitter
from polyrec.models.schema.batch import F32, F64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.training.baselines import (
    LEARNING_RATE,
    MAX_DENSE,
    Baselines,
    LinearTerms,
    LogisticRegression,
    shortfalls,
)


@pytest.fixture(scope="module")
def data(bundle: Bundle, clicks: Path) -> Iterator[EncodedRows]:
    reader = open_data(clicks, bundle.manifest.schema_)
    with encode(reader, bundle.encoder, fit_splitter(reader, bundle.manifest.schema_)) as rows:
        yield rows


def dense_matrix(encoder: Encoder, data: EncodedRows, rows: int) -> F64:
    """The slow, obvious form: the inputs of each row as one dense vector, features in the schema's order."""
    matrix = []
    for r in range(rows):
        batch = data.batch(np.array([r]))
        parts = [np.ones(1)]
        blocks = ((encoder.schema.context, batch.context), (encoder.schema.candidate, batch.candidate))
        for layout, block in blocks:
            parts.append(np.clip(block.dense[0].astype(np.float64), -MAX_DENSE, MAX_DENSE))
            for i, f in enumerate(layout.singles):
                parts.append(np.eye(encoder.vocabulary(f).rows)[block.ranks[0, i]])
            for i, f in enumerate(layout.bags):
                values = block.bag_values[block.bag_offsets[i] : block.bag_offsets[i + 1]]
                bag = np.zeros(encoder.vocabulary(f).rows)
                np.add.at(bag, values, 1 / max(1, values.size) if f.pooling == "mean" else 1)
                parts.append(bag)
        matrix.append(np.concatenate(parts))
    return np.stack(matrix)


def test_steps_and_logits_equal_those_of_a_dense_matrix(bundle: Bundle, data: EncodedRows) -> None:
    terms = LinearTerms(bundle.encoder)
    model = LogisticRegression(terms.width, base_rate=0.25)
    x = dense_matrix(bundle.encoder, data, 60)
    assert x.shape[1] == terms.width
    weights, squares = model.weights.copy(), np.full(terms.width, 1e-2)
    for step in range(3):
        rows = np.arange(step * 20, step * 20 + 20)
        label: F32 = data.label[rows]
        np.testing.assert_allclose(model.logits(terms(data.batch(rows))), x[rows] @ weights, atol=1e-9)
        gradient = x[rows].T @ (1 / (1 + np.exp(-x[rows] @ weights)) - label)
        squares += gradient**2
        weights -= LEARNING_RATE * gradient / np.sqrt(squares)
        model.step(terms(data.batch(rows)), label)
        np.testing.assert_allclose(model.weights, weights, atol=1e-9)


def test_the_regression_beats_the_constant_and_repeats_itself(bundle: Bundle, data: EncodedRows) -> None:
    def measured() -> list[dict[str, float | int | None]]:
        training, validation = data.select(TRAIN), data.select(VALIDATION)
        found = Baselines.fit(bundle.encoder, data, training, validation, seed=3)
        again = found.refit(bundle.encoder, data, data.select(TRAIN, VALIDATION), seed=3)
        return [q.as_dict() for b in (found, again) for q in b.measure(data).values()]

    constant, logistic, _, refitted = first = measured()
    assert constant["auc"] == 0.5
    assert logistic["log_loss"] < 0.9 * constant["log_loss"]  # type: ignore[operator]
    assert refitted["log_loss"] < 0.9 * constant["log_loss"]  # type: ignore[operator]
    assert first == measured()


def test_a_bundle_carries_the_baselines_of_its_own_test_rows(bundle: Bundle, data: EncodedRows) -> None:
    metrics = bundle.manifest.metrics
    assert metrics["constant"]["rows"] == metrics["logistic"]["rows"] == data.select(TEST).size
    base = data.label[data.select(TRAIN)].mean()
    y = data.label[data.select(TEST)].mean()
    assert metrics["constant"]["log_loss"] == pytest.approx(-y * np.log(base) - (1 - y) * np.log(1 - base))


def test_shortfalls_name_the_baseline_and_both_figures() -> None:
    good, bad = {"log_loss": 0.5, "auc": 0.8}, {"log_loss": 0.6, "auc": 0.7}
    assert shortfalls({"test": good, "constant": bad, "logistic": bad}) == []
    assert shortfalls({"test": good}) == []
    (warning,) = shortfalls({"test": bad, "constant": {"log_loss": 0.7, "auc": 0.5}, "logistic": good})
    assert "'logistic'" in warning
    assert "log-loss 0.6 against 0.5" in warning
    (ranked,) = shortfalls({"test": {"log_loss": 0.4, "auc": 0.7}, "logistic": good})
    assert "AUC 0.7 against 0.8" in ranked


@pytest.mark.parametrize(("positives", "missing"), [(0, "click"), (5, "row without a click")])
def test_test_rows_of_one_class_are_the_only_shortfall(positives: int, missing: str) -> None:
    test = {"rows": 5, "positives": positives, "log_loss": 0.6}
    (warning,) = shortfalls({"test": test, "constant": {"log_loss": 0.5}})
    assert f"among 5 test rows there is no {missing}:" in warning
