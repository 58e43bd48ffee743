"""Computes quality metrics of predictions from probabilities and labels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import F32, I64

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Quality:
    """Metrics of one set of predictions.

    auc: area under the ROC curve, ties counted half; NaN if only one class is present.
    log_loss: mean negative log-likelihood, in nats.
    normalised_entropy: log_loss over that of the constant base rate (He et al., ADKDD'14).
    information: 1 - normalised_entropy, the share of the labels' entropy that the predictions explain.
    information_error: standard error of information over rows, or over groups.
    accuracy: share of correct predictions at threshold 0.5.
    calibration: mean prediction over mean label. mrr, top1, ndcg: for grouped data, over groups with a
    positive: mean reciprocal rank of the best-ranked positive, share of groups that rank a positive first,
    mean normalized discounted cumulative gain. Ties take their mean rank. None without groups.
    """

    rows: int
    positives: int
    auc: float
    log_loss: float
    normalised_entropy: float
    accuracy: float
    calibration: float
    information: float
    information_error: float
    groups: int | None = None
    mrr: float | None = None
    top1: float | None = None
    ndcg: float | None = None

    def as_dict(self) -> dict[str, float | int | None]:
        """Returns a JSON-serializable dict; undefined metrics are None."""
        return {
            k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(self).items()
        }


def evaluate(
    probabilities: F32, labels: F32, groups: I64 | None = None, negatives_kept: float = 1.0
) -> Quality:
    """Measures predictions.

    probabilities, labels: float32 [rows], labels 0 or 1. groups: int64 [rows], the request of each.
    negatives_kept: share of the negatives that the data kept; each then counts as 1 / negatives_kept rows.
    """
    p, y = probabilities.astype(np.float64), labels.astype(np.float64)
    if p.shape != y.shape or p.ndim != 1 or not p.size:
        raise ValueError(f"{p.shape} predictions for {y.shape} labels")
    weights = row_weights(y, negatives_kept)
    losses = row_losses(p, y) * weights
    rows = float(weights.sum())
    base = float(y @ weights) / rows
    entropy = binary_entropy(base)
    units = None if groups is None else np.unique(groups, return_inverse=True)[1]
    loss = float(losses.sum()) / rows
    ranks = None if groups is None else Ranks(p, y, groups)
    scored = ranks is not None and ranks.count > 0
    return Quality(
        rows=p.size,
        positives=int(y.sum()),
        auc=auc(p, y),
        log_loss=loss,
        normalised_entropy=loss / entropy if entropy else float("nan"),
        accuracy=float((((p > 0.5) == (y > 0.5)) @ weights) / rows),
        calibration=float(p @ weights) / rows / base if base else float("nan"),
        information=1 - loss / entropy if entropy else float("nan"),
        information_error=_mean_error(losses, weights, units) / entropy if entropy else float("nan"),
        groups=None if ranks is None else ranks.count,
        mrr=None if ranks is None else float(ranks.reciprocal.mean()) if scored else float("nan"),
        top1=None if ranks is None else float(ranks.first.mean()) if scored else float("nan"),
        ndcg=None if ranks is None else float(ranks.ndcg.mean()) if scored else float("nan"),
    )


def row_weights(labels: Floats, negatives_kept: float) -> NDArray[np.float64]:
    """Returns how many rows of the unsampled data each row represents, float64 [rows]."""
    return np.where(labels > 0.5, 1.0, 1.0 / negatives_kept)


def binary_entropy(base: float) -> float:
    """Returns the log-loss in nats of predicting the base rate for every row."""
    if not 0 < base < 1:
        return 0.0
    return float(-base * np.log(base) - (1 - base) * np.log1p(-base))


def _mean_error(
    losses: NDArray[np.float64], weights: NDArray[np.float64], units: NDArray[np.int64] | None
) -> float:
    """Returns the standard error of the mean loss, a ratio of two sums over rows or over groups of rows.

    The base rate's own error is left out, because it affects all models alike.
    """
    if units is not None:
        losses = np.bincount(units, weights=losses).astype(np.float64)
        weights = np.bincount(units, weights=weights).astype(np.float64)
    if losses.size < 2:
        return float("nan")
    mean = losses.sum() / weights.sum()
    return float(np.std(losses - mean * weights, ddof=1) * losses.size**0.5 / weights.sum())


def log_loss(p: Floats, y: Floats) -> float:
    """Returns the mean negative log-likelihood in nats; probabilities are clipped to 1e-7 from 0 and 1."""
    return float(row_losses(p, y).mean())


def row_losses(p: Floats, y: Floats) -> NDArray[np.float64]:
    """Returns the negative log-likelihood of each row in nats, float64 [rows]."""
    p = np.clip(p.astype(np.float64), 1e-7, 1 - 1e-7)
    losses: NDArray[np.float64] = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    return losses


def auc(p: Floats, y: Floats) -> float:
    """Returns the area under the ROC curve: the probability that a positive outscores a negative, ties
    half.
    """
    positives = float(y.sum())
    negatives = y.size - positives
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(p, return_inverse=True, return_counts=True)
    upper = np.cumsum(counts)
    rank = (upper - (counts - 1) / 2.0)[inverse]
    return float((rank[y > 0.5].sum() - positives * (positives + 1) / 2) / (positives * negatives))


class Ranks:
    """How well each group's positives are ranked, for groups that have any; ties take their mean rank.

    group: int64 [count], group numbers, ascending. reciprocal: of the best-ranked positive's rank.
    first: 1 if a positive is first, a share if it ties. ndcg: discounted by log2(1 + rank), over the best
    possible value. All float64 [count].
    """

    def __init__(self, p: Floats, y: Floats, groups: I64) -> None:
        order = np.lexsort((-p, groups))
        g, score, label = groups[order], p[order], y[order] > 0.5
        start = np.flatnonzero(np.r_[True, g[1:] != g[:-1]])
        group = np.cumsum(np.r_[False, g[1:] != g[:-1]])
        best = np.full(start.size, -np.inf)
        np.maximum.at(best, group[label], score[label])
        scored = np.isfinite(best)
        above = np.add.reduceat(score > best[group], start)
        ties = np.add.reduceat(score == best[group], start)
        position = np.arange(g.size) - start[group]
        # equal scores of a group share the mean of their discounts
        run = np.cumsum(np.r_[True, (g[1:] != g[:-1]) | (score[1:] != score[:-1])]) - 1
        discount = 1 / np.log2(position + 2)
        shared = (np.bincount(run, weights=discount) / np.bincount(run))[run]
        positives = np.add.reduceat(label, start)
        gain = np.add.reduceat(np.where(label, shared, 0.0), start)
        ideal = np.add.reduceat(np.where(position < positives[group], discount, 0.0), start)
        self.group = g[start][scored]
        self.reciprocal = (1 / (above + (ties + 1) / 2.0))[scored]
        self.first = ((above == 0) / np.maximum(ties, 1))[scored]
        self.ndcg = gain[scored] / ideal[scored]

    @property
    def count(self) -> int:
        """Number of groups with a positive."""
        return int(self.reciprocal.size)
