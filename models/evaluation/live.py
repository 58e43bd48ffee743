"""Estimates the quality of several models on requests whose labels arrived later, with paired intervals.

    requests, each scored by every model --estimate--> information gain, calibration, AUC, and differences

A resample draws requests with replacement (paired bootstrap, as in comparison.py). Information gain and
calibration are ratios of sums over requests, so all their resamples take a few matrix products.

Labels come from clients, any of which may be wrong or hostile. So each difference is also estimated without
the labels of each client, and `confirmed` is the hull of all these intervals: a value outside it is excluded
whichever client is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyrec.models.evaluation.comparison import LEVEL, Interval, SortedScores, draws, percentiles
from polyrec.models.evaluation.metrics import Floats, row_losses
from polyrec.models.schema.batch import F32, F64

RESAMPLES = 1000
SEED = 0
AUC_RESAMPLES = 200
"""An AUC takes a pass over all rows for each resample."""
CONFIRMED_LEVEL = 0.99
"""Level of `confirmed`, strict because it is evaluated repeatedly."""
MIN_REQUESTS = 30
"""Requests with a positive below which a bootstrap interval is too narrow."""
MIN_DEFINED = 0.9
"""Share of the resamples in which a metric must be defined for an interval."""
UNDEFINED = Interval(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRequest:
    """A request with final labels.

    at_s: when it was answered, Unix time in seconds. client: sender of the labels; None: unlabeled.
    labels: float32 [rows], 0 or 1. scores: float32 [models, rows], click probabilities.
    """

    at_s: float
    client: str | None
    labels: F32
    scores: F32


@dataclass(frozen=True, slots=True)
class LiveModel:
    """Metrics of one model.

    difference: of its information gain from the reference's, at LEVEL. confirmed: the same at
    CONFIRMED_LEVEL, for any client left out.
    """

    information: Interval
    calibration: Interval
    auc: Interval
    difference: Interval
    confirmed: Interval


@dataclass(frozen=True, slots=True)
class LiveEstimate:
    """Estimates of all models, and the sample's size. clients: number of requests labeled by each."""

    requests: int
    rows: int
    positives: int
    clients: Mapping[str, int]
    models: tuple[LiveModel, ...]


class RequestSums:
    """Computes metrics of resamples of requests from sums over the rows of each request.

    There must be at least one request, and all must have the same number of models. Non-finite scores count
    as the worst possible prediction of their row.
    rows, clicks: of each request, float64 [requests].
    """

    def __init__(self, requests: Sequence[ScoredRequest]) -> None:
        # of each row: its request, its label, and its score by each model
        self._request = np.repeat(np.arange(len(requests)), [r.labels.size for r in requests])
        self._labels: F32 = np.concatenate([r.labels for r in requests])
        scores = np.concatenate([r.scores for r in requests], axis=1)
        self._scores: F32 = np.where(np.isfinite(scores), scores, 1 - self._labels).astype(np.float32)
        self.rows = self._sum(np.ones(self._labels.size))
        self.clicks = self._sum(self._labels)
        # of each request by each model, [requests, models]
        self._losses = np.stack([self._sum(row_losses(p, self._labels)) for p in self._scores], axis=1)
        self._predicted_clicks = np.stack([self._sum(p) for p in self._scores], axis=1)

    def _sum(self, values: Floats) -> F64:
        """Sums values of rows by request."""
        return np.bincount(self._request, weights=values).astype(np.float64)

    def information(self, weights: F64) -> F64:
        """Information gain, float64 [resamples, models]; nan without both classes.

        weights: float64 [resamples, requests], how often each request was drawn.
        """
        rows = weights @ self.rows
        with np.errstate(invalid="ignore", divide="ignore"):
            base = weights @ self.clicks / rows
            entropy = -base * np.log(base) - (1 - base) * np.log1p(-base)
            found: F64 = 1 - (weights @ self._losses) / (rows * entropy)[:, None]
        return np.where(np.isfinite(found), found, np.nan)

    def calibration(self, weights: F64) -> F64:
        """Mean prediction over mean label, float64 [resamples, models]; nan without a positive."""
        with np.errstate(invalid="ignore", divide="ignore"):
            found: F64 = (weights @ self._predicted_clicks) / (weights @ self.clicks)[:, None]
        return np.where(np.isfinite(found), found, np.nan)

    def auc(self, weights: F64) -> F64:
        """AUC, ties counted half, float64 [resamples, models]; nan without both classes."""
        sorted_scores = [SortedScores(p, self._labels) for p in self._scores]
        drawn = weights.astype(np.int64)
        return np.array([[s.auc(row[self._request]) for s in sorted_scores] for row in drawn])


def estimate(
    requests: Sequence[ScoredRequest],
    reference: int,
    trusted: Collection[str] = (),
) -> LiveEstimate | None:
    """Estimates all models on the same requests; None without requests.

    reference: index of the model to which differences are computed.
    trusted: clients whose labels need no confirmation by others. A difference is confirmed if it does not
    depend on any other single client.
    """
    if not requests:
        return None
    sums = RequestSums(requests)
    weights = np.array([np.ones(len(requests)), *draws(len(requests), RESAMPLES, SEED)], np.float64)
    information = sums.information(weights)
    calibration = sums.calibration(weights)
    auc = sums.auc(weights[: 1 + AUC_RESAMPLES])
    clients: dict[str, int] = {}
    for request in requests:
        if request.client is not None:
            clients[request.client] = clients.get(request.client, 0) + 1
    confirmed = _confirmed(sums, requests, weights, information, reference, clients.keys() - set(trusted))
    to_reference = information - information[:, [reference]]
    models = tuple(
        LiveModel(
            _interval(information[:, m]),
            _interval(calibration[:, m]),
            _interval(auc[:, m]),
            _interval(to_reference[:, m]),
            confirmed[m],
        )
        for m in range(information.shape[1])
    )
    rows, positives = int(sums.rows.sum()), int(sums.clicks.sum())
    return LiveEstimate(len(requests), rows, positives, clients, models)


def _confirmed(
    sums: RequestSums,
    requests: Sequence[ScoredRequest],
    weights: F64,
    information: F64,
    reference: int,
    doubted: Collection[str],
) -> list[Interval]:
    """Returns hulls of intervals over all requests, over labeled ones, and without each doubted client."""
    whole = np.ones(len(requests), bool)
    has_positive = sums.clicks > 0
    hulls: list[Interval] | None = None
    clients = np.array([request.client for request in requests], object)
    # unlabeled requests have no known client, so a single client may have sent them all
    labeled = np.array([client is not None for client in clients], bool)
    for kept in (whole, labeled, *(clients != client for client in doubted)):
        if has_positive[kept].sum() < MIN_REQUESTS:
            return [UNDEFINED] * information.shape[1]
        found = information if kept is whole else sums.information(weights * kept)
        found = found - found[:, [reference]]
        intervals = [_interval(found[:, m], CONFIRMED_LEVEL) for m in range(found.shape[1])]
        hulls = intervals if hulls is None else [_hull(a, b) for a, b in zip(hulls, intervals, strict=True)]
    assert hulls is not None
    return hulls


def _hull(one: Interval, other: Interval) -> Interval:
    """Returns the value of `one` in the smallest interval that holds both; undefined if either is."""
    if np.isnan([one.low, other.low]).any():
        return UNDEFINED
    return Interval(one.value, min(one.low, other.low), max(one.high, other.high))


def _interval(drawn: F64, level: float = LEVEL) -> Interval:
    """Returns the interval of a metric. drawn: [1 + resamples], the first being the value itself."""
    defined = drawn[1:][np.isfinite(drawn[1:])]
    if not np.isfinite(drawn[0]) or defined.size < MIN_DEFINED * (drawn.size - 1):
        return UNDEFINED
    return Interval(float(drawn[0]), *percentiles(defined, level))
