from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.paired import ratio


def test_a_ratio_has_students_interval_of_paired_logarithms() -> None:
    over, under = np.array([1.1, 2.3, 3.1, 0.9]), np.array([1.0, 2.0, 3.0, 1.0])
    mean, low, high = ratio(over.tolist(), under.tolist())
    logs = np.log(over / under)
    expected = stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs))
    assert [math.log(low), math.log(mean), math.log(high)] == pytest.approx(
        [expected[0], logs.mean(), expected[1]]
    )


def test_one_pair_has_no_interval() -> None:
    mean, low, high = ratio([2.0], [1.0])
    assert mean == 2
    assert math.isnan(low)
    assert math.isnan(high)
