"""Compares paired figures of turns by their ratio and its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit


def ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """Returns the mean ratio of pairs and its 95% interval (Student's, of log-ratios); nan for one pair."""
    logs = np.log(np.asarray(over) / np.asarray(under))
    middle = float(logs.mean())
    if logs.size < 2:
        return float(np.exp(middle)), float("nan"), float("nan")
    half = float(stdtrit(logs.size - 1, 0.975) * logs.std(ddof=1) / logs.size**0.5)
    return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))


def ratio_at_equal(
    over: Sequence[float], under: Sequence[float], over_by: Sequence[float], under_by: Sequence[float]
) -> tuple[float, float, float]:
    """Returns the ratio of pairs at equal values of a covariate, and its 95% interval; needs five pairs.

    Analysis of covariance: regresses the log-ratios on the differences of the covariate's logarithm and its
    square, and returns the intercept. over_by, under_by: the covariate of each run, positive.
    """
    logs = np.log(np.asarray(over) / np.asarray(under))
    by = np.log(np.stack((over_by, under_by)))
    by -= by.mean()
    design = np.stack((np.ones_like(logs), by[0] - by[1], by[0] ** 2 - by[1] ** 2), axis=1)
    inverse = np.linalg.pinv(design.T @ design)
    found = inverse @ design.T @ logs
    free = logs.size - design.shape[1]
    variance = float(((logs - design @ found) ** 2).sum()) / free
    half = float(stdtrit(free, 0.975) * (variance * inverse[0, 0]) ** 0.5)
    middle = float(found[0])
    return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))
