from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.data.moments import LEAST, Moments
from polyrec.models.errors import DataError
from polyrec.models.schema.dense_transform import DenseTransform, Standard
from polyrec.models.schema.schema import Dense


@given(
    batches=st.lists(st.lists(st.just(float("nan")) | st.floats(-1e6, 1e6), max_size=8), max_size=6),
    log=st.booleans(),
)
def test_batches_add_up_to_the_whole(batches: list[list[float]], log: bool) -> None:
    moments = Moments(Dense(name="x", transform=("log1p",) if log else ()))
    for batch in batches:
        moments.add(np.array(batch, np.float64))
    x = np.array([v for batch in batches for v in batch if v == v])
    x = np.log1p(np.maximum(x, 0)) if log else x
    got = moments.standard()
    assert got.mean == pytest.approx(x.mean() if x.size else 0.0, rel=1e-9, abs=1e-6)
    if x.size and x.std() > max(1e-9 * np.abs(x).max(), LEAST):
        assert got.deviation == pytest.approx(x.std(), rel=1e-6)


def test_a_small_deviation_around_a_large_mean_is_not_lost() -> None:
    moments = Moments(Dense(name="x"))
    random = np.random.default_rng(0)
    x = 1e9 + random.normal(size=100_000)
    for part in np.split(x, 100):
        moments.add(part)
    assert moments.standard().deviation == pytest.approx(x.std(), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 / 3])
def test_a_feature_that_never_varies_keeps_deviation_one(value: float) -> None:
    moments = Moments(Dense(name="x"))
    for size in (1, 999, 12):
        moments.add(np.full(size, value))
    assert moments.standard() == Standard(pytest.approx(value), 1.0)


def test_numbers_next_to_zero_do_not_scale_others_beyond_float32() -> None:
    moments = Moments(Dense(name="x"))
    moments.add(np.array([0.0, 4.2e-45]))
    transform = DenseTransform([Dense(name="x", transform=("standardise",))], {"x": moments.standard()})
    assert transform(np.array([[1.0]]))[0, 0] == pytest.approx(1.0)


def test_a_feature_that_is_always_missing_is_unchanged() -> None:
    moments = Moments(Dense(name="x"))
    moments.add(np.full(3, np.nan))
    assert moments.standard() == Standard(0.0, 1.0)


def test_values_too_large_to_have_a_deviation_are_refused_by_name() -> None:
    moments = Moments(Dense(name="x"))
    moments.add(np.array([1.0, 2.0]))
    with pytest.raises(DataError, match=r"dense feature 'x': its values, up to 1e\+300, .*log1p"):
        moments.add(np.array([1e300, -1e300]))
