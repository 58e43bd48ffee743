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

    auc: area under the ROC curve, ties counted half; nan where only one class is present.
    log_loss: mean negative log-likelihood, nats. normalised_entropy: log_loss over that of the
    constant base rate (He et al., ADKDD'14). accuracy: share of correct predictions at threshold 0.5.
    calibration: mean prediction over mean label. mrr and top1: for grouped data, the mean reciprocal
    rank of the best-ranked positive and the share of groups that rank a positive first, over groups
    with a positive; ties take their mean rank. None without groups.
    """

    rows: int
    positives: int
    auc: float
    log_loss: float
    normalised_entropy: float
    accuracy: float
    calibration: float
    groups: int | None = None
    mrr: float | None = None
    top1: float | None = None

    def as_dict(self) -> dict[str, float | int | None]:
        """Returns a JSON-able dict; undefined metrics are None."""
        return {
            k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(self).items()
        }


def evaluate(probabilities: F32, labels: F32, groups: I64 | None = None) -> Quality:
    """Measures predictions.

    probabilities, labels: float32 [rows], labels 0 or 1. groups: int64 [rows], the request of each.
    """
    p, y = probabilities.astype(np.float64), labels.astype(np.float64)
    if p.shape != y.shape or p.ndim != 1 or not p.size:
        raise ValueError(f"{p.shape} predictions for {y.shape} labels")
    loss = log_loss(p, y)
    base = float(y.mean())
    entropy = log_loss(np.full_like(y, base), y)
    mrr, top1, count = (None, None, None) if groups is None else ranking(p, y, groups)
    return Quality(
        rows=p.size,
        positives=int(y.sum()),
        auc=auc(p, y),
        log_loss=loss,
        normalised_entropy=loss / entropy if entropy else float("nan"),
        accuracy=float(((p > 0.5) == (y > 0.5)).mean()),
        calibration=float(p.mean()) / base if base else float("nan"),
        groups=count,
        mrr=mrr,
        top1=top1,
    )


def log_loss(p: Floats, y: Floats) -> float:
    """Mean negative log-likelihood in nats; probabilities are kept 1e-7 away from 0 and 1."""
    return float(row_losses(p, y).mean())


def row_losses(p: Floats, y: Floats) -> NDArray[np.float64]:
    """Returns the negative log-likelihood of each row in nats, float64 [rows]."""
    p = np.clip(p.astype(np.float64), 1e-7, 1 - 1e-7)
    losses: NDArray[np.float64] = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    return losses


def auc(p: Floats, y: Floats) -> float:
    """Area under the ROC curve: the probability that a positive scores above a negative, ties
    counted half.
    """
    positives = float(y.sum())
    negatives = y.size - positives
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(p, return_inverse=True, return_counts=True)
    upper = np.cumsum(counts)
    rank = (upper - (counts - 1) / 2.0)[inverse]
    return float((rank[y > 0.5].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def ranking(p: Floats, y: Floats, groups: I64) -> tuple[float, float, int]:
    """(mean reciprocal rank, top-1 share, groups) over groups that have a positive."""
    order = np.lexsort((-p, groups))
    g, score, label = groups[order], p[order], y[order] > 0.5
    start = np.flatnonzero(np.r_[True, g[1:] != g[:-1]])
    group = np.cumsum(np.r_[False, g[1:] != g[:-1]])
    best = np.full(start.size, -np.inf)
    np.maximum.at(best, group[label], score[label])
    scored = np.isfinite(best)
    if not scored.any():
        return float("nan"), float("nan"), 0
    above = np.add.reduceat(score > best[group], start)
    ties = np.add.reduceat(score == best[group], start)
    rank = above + (ties + 1) / 2.0
    top = (above == 0) / np.maximum(ties, 1)
    return float((1 / rank[scored]).mean()), float(top[scored].mean()), int(scored.sum())
