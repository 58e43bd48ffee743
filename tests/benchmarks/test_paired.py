from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.paired import ratio, ratio_at_equal


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


def test_a_ratio_at_equal_speed_is_the_intercept_of_a_regression() -> None:
    random = np.random.default_rng(2)
    by = np.exp(random.normal(0, 0.1, (2, 16)))

    def information(by: np.ndarray) -> np.ndarray:
        return np.exp(random.normal(0, 0.01, 16) - np.log(by) - 3 * np.log(by) ** 2)

    over, under = 1.05 * information(by[0]), information(by[1])
    middle, low, high = ratio_at_equal(over.tolist(), under.tolist(), by[0].tolist(), by[1].tolist())
    x = np.log(by) - np.log(by).mean()
    design = np.stack((np.ones(16), x[0] - x[1], x[0] ** 2 - x[1] ** 2), axis=1)
    (intercept, *_), (squares,), _, _ = np.linalg.lstsq(design, np.log(over / under), rcond=None)
    error = math.sqrt(squares / 13 * np.linalg.inv(design.T @ design)[0, 0])
    half = stats.t.ppf(0.975, 13) * error
    assert [math.log(low), math.log(middle), math.log(high)] == pytest.approx(
        [intercept - half, intercept, intercept + half]
    )
    assert low < 1.05 < high
    wide = ratio(over.tolist(), under.tolist())
    assert high - low < (wide[2] - wide[1]) / 3
