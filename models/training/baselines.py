"""Trains baselines to report beside a model: the constant base rate, and logistic regression.

A model that does not beat them has learned nothing worth serving. The regression has one weight per feature
and row of its table (unlike hashed ids, without collisions), one per dense value, and a bias. It is trained
like the model: on the same rows, with the same early stopping on validation rows. Steps are Adagrad's,
adaptive per coordinate, as in FTRL-Proximal without its L1 and L2 terms (McMahan et al., Ad click prediction:
a view from the trenches, KDD'13, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyrec.models.evaluation.metrics import Quality, evaluate, log_loss
from polyrec.models.schema.batch import F32, F64, I64, Batch, Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES
from polyrec.models.training.objective import log_odds
from polyrec.models.training.row_order import epoch
from polyrec.models.training.source import TrainingRows

LEARNING_RATE = 0.1
BATCH_ROWS = 512
EPOCHS = 5
CHECKS_PER_EPOCH = 2
PATIENCE = 2
SLICE_ROWS = 65536
MAX_DENSE = 5.0
"""Dense values are clipped to +- this, so that one outlier cannot dominate a linear model."""

CONSTANT, LOGISTIC = "constant", "logistic"


@dataclass(frozen=True, slots=True)
class Terms:
    """The non-zero inputs of a batch's rows as (row, column, value) triples, sorted by row.

    row, column: int64 [n]. value: float64 [n]. rows: number of rows.
    """

    row: I64
    column: I64
    value: F64
    rows: int


class LinearTerms:
    """Turns batches into the sparse rows of a linear model.

    Columns are the bias, then per role the dense values and, per feature, the rows of its table. Features
    that share a table have separate columns. Each value of a bag weighs 1, or 1 / length if the bag is
    averaged.
    """

    def __init__(self, encoder: Encoder) -> None:
        schema = encoder.schema
        self._dense: dict[str, int] = {}
        self._singles: dict[str, I64] = {}
        self._bags: dict[str, tuple[I64, NDArray[np.bool_]]] = {}
        width = 1
        for role in ROLES:
            layout = schema.layout(role)
            self._dense[role] = width
            width += len(layout.dense)
            bases = []
            for f in layout.categorical:
                bases.append(width)
                width += encoder.vocabulary(f).rows
            base = np.array(bases, np.int64)
            self._singles[role] = base[: len(layout.singles)]
            averaged = np.array([f.pooling == "mean" for f in layout.bags], bool)
            self._bags[role] = base[len(layout.singles) :], averaged
        self.width = width

    def __call__(self, batch: Batch) -> Terms:
        rows = batch.rows
        parts = [(np.arange(rows), np.zeros(rows, np.int64), np.ones(rows))]
        context = batch.context if batch.context_row is None else batch.context.take(batch.context_row)
        for role, block in zip(ROLES, (context, batch.candidate), strict=True):
            parts += self._block(role, block)
        row, column, value = (np.concatenate(x) for x in zip(*parts, strict=True))
        return Terms(row, column, value, rows)

    def _block(self, role: str, block: Block) -> list[tuple[I64, I64, F64]]:
        rows = block.rows
        dense = block.dense.shape[1]
        parts: list[tuple[I64, I64, F64]] = []
        if dense:
            column = np.tile(self._dense[role] + np.arange(dense), rows)
            value = np.clip(block.dense.ravel().astype(np.float64), -MAX_DENSE, MAX_DENSE)
            parts.append((np.repeat(np.arange(rows), dense), column, value))
        singles = self._singles[role]
        if singles.size:
            column = (block.ranks + singles).ravel()
            parts.append((np.repeat(np.arange(rows), singles.size), column, np.ones(column.size)))
        bases, averaged = self._bags[role]
        if bases.size and rows:
            lengths = np.diff(block.bag_offsets)
            weight = np.where(np.tile(averaged, rows), 1.0 / np.maximum(lengths, 1), 1.0)
            column = block.bag_values + np.repeat(np.tile(bases, rows), lengths)
            row = np.repeat(np.repeat(np.arange(rows), bases.size), lengths)
            parts.append((row, column, np.repeat(weight, lengths)))
        return parts


class LogisticRegression:
    """Holds weights, float64 [width], and their accumulated squared gradients."""

    def __init__(self, width: int, base_rate: float) -> None:
        self.weights = np.zeros(width)
        self.weights[0] = log_odds(base_rate)
        self._squares = np.full(width, 1e-2)

    def logits(self, terms: Terms) -> F64:
        """Returns float64 [terms.rows]."""
        products = self.weights[terms.column] * terms.value
        return np.bincount(terms.row, products, terms.rows).astype(np.float64)

    def step(self, terms: Terms, label: F32) -> None:
        """Takes one Adagrad step on the sum of the rows' losses."""
        error = _sigmoid(self.logits(terms)) - label
        columns, place = np.unique(terms.column, return_inverse=True)
        gradient = np.bincount(place, error[terms.row] * terms.value, columns.size)
        self._squares[columns] += gradient**2
        self.weights[columns] -= LEARNING_RATE * gradient / np.sqrt(self._squares[columns])


def fit_logistic(
    terms: LinearTerms, data: TrainingRows, training: I64, validation: I64, seed: int
) -> tuple[LogisticRegression, float]:
    """Trains on the rows `training`; returns the model at its best check, and the epochs until then."""
    model = LogisticRegression(terms.width, float(data.label[training].mean()))
    every = max(1, -(-training.size // BATCH_ROWS) // CHECKS_PER_EPOCH)
    best, kept, at = np.inf, model.weights.copy(), 0
    for step in _steps(model, terms, data, training, seed):
        if step % every == 0:
            loss = log_loss(predict_logistic(model, terms, data, validation), data.label[validation])
            if loss < best:
                best, kept, at = loss, model.weights.copy(), step
            elif step - at >= PATIENCE * every:
                break
    model.weights = kept
    return model, at * BATCH_ROWS / training.size


def refit_logistic(
    terms: LinearTerms, data: TrainingRows, rows: I64, epochs: float, seed: int
) -> LogisticRegression:
    """Trains on all `rows` for a given number of epochs."""
    model = LogisticRegression(terms.width, float(data.label[rows].mean()))
    stop = round(epochs * rows.size / BATCH_ROWS)
    for step in _steps(model, terms, data, rows, seed) if stop else ():
        if step >= stop:
            break
    return model


def _steps(
    model: LogisticRegression, terms: LinearTerms, data: TrainingRows, rows: I64, seed: int
) -> Iterator[int]:
    """Takes the steps of EPOCHS epochs; yields the number of steps after each step."""
    random = np.random.default_rng(seed)
    step = 0
    for _ in range(EPOCHS):
        for chosen in epoch(rows, None, BATCH_ROWS, random):
            model.step(terms(data.batch(chosen)), data.label[chosen])
            step += 1
            yield step


def predict_logistic(model: LogisticRegression, terms: LinearTerms, data: TrainingRows, rows: I64) -> F32:
    """Returns probabilities, float32 [rows.size]."""
    parts = [
        _sigmoid(model.logits(terms(data.batch(rows[start : start + SLICE_ROWS]))))
        for start in range(0, rows.size, SLICE_ROWS)
    ]
    return np.concatenate(parts).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Baselines:
    """Both baselines, trained. epochs: number of epochs at which the regression was best on validation
    rows.
    """

    base_rate: float
    terms: LinearTerms
    logistic: LogisticRegression
    epochs: float

    @staticmethod
    def fit(encoder: Encoder, data: TrainingRows, training: I64, validation: I64, seed: int) -> Baselines:
        """Trains on the rows `training`, choosing the number of steps on the rows `validation`."""
        terms = LinearTerms(encoder)
        logistic, epochs = fit_logistic(terms, data, training, validation, seed)
        return Baselines(float(data.label[training].mean()), terms, logistic, epochs)

    def refit(self, encoder: Encoder, data: TrainingRows, rows: I64, seed: int) -> Baselines:
        """Returns new baselines, trained on all `rows` for the best number of epochs."""
        terms = LinearTerms(encoder)
        logistic = refit_logistic(terms, data, rows, self.epochs, seed)
        return Baselines(float(data.label[rows].mean()), terms, logistic, self.epochs)

    def measure(self, data: TrainingRows, negatives_kept: float = 1.0) -> dict[str, Quality]:
        """Measures both on all rows of `data`. negatives_kept: share of the negatives that the data kept."""
        label, rows = data.label, np.arange(data.label.size)
        probabilities = {
            CONSTANT: np.full(label.shape, self.base_rate, np.float32),
            LOGISTIC: predict_logistic(self.logistic, self.terms, data, rows),
        }
        clipped = {name: np.clip(p.astype(np.float64), 1e-7, 1 - 1e-7) for name, p in probabilities.items()}
        odds = {name: negatives_kept * p / (1 - p) for name, p in clipped.items()}
        return {
            name: evaluate((o / (1 + o)).astype(np.float32), label, data.group, negatives_kept)
            for name, o in odds.items()
        }


def shortfalls(metrics: Mapping[str, Mapping[str, float | int | None]]) -> list[str]:
    """Returns a warning for each baseline in a bundle's metrics that the model does not beat on test rows.

    If all test rows are of one class they measure nothing, which is then the only warning.
    """
    rows, positives = metrics["test"].get("rows"), metrics["test"].get("positives")
    if rows is not None and positives in (0, rows):
        what = "click" if positives == 0 else "row without a click"
        return [f"among {rows:,} test rows there is no {what}: information and AUC are undefined"]
    found = []
    for name in (CONSTANT, LOGISTIC):
        for key, word, sign in (("log_loss", "log-loss", -1), ("auc", "AUC", 1)):
            ours, theirs = metrics["test"].get(key), metrics.get(name, {}).get(key)
            if ours is not None and theirs is not None and sign * (ours - theirs) <= 0:
                found.append(
                    f"the model does not beat the baseline '{name}' on the test rows: "
                    f"{word} {ours:.5g} against {theirs:.5g}"
                )
                break
    return found


def _sigmoid(x: F64) -> F64:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0))))
