"""Compares paired figures of turns by the interval of their ratio."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit


def ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """Mean ratio of pairs and its 95% interval, by Student's interval of the log-ratios; nan for one pair."""
    logs = np.log(np.asarray(over) / np.asarray(under))
    middle = float(logs.mean())
    if logs.size < 2:
        return float(np.exp(middle)), float("nan"), float("nan")
    half = float(stdtrit(logs.size - 1, 0.975) * logs.std(ddof=1) / logs.size**0.5)
    return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))
