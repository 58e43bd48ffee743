from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.errors import FeatureError
from polyrec.models.schema.dense_transform import LIMIT, DenseTransform, Standard
from polyrec.models.schema.schema import Dense


@given(st.lists(st.none() | st.floats(-1e3, 1e9), max_size=8), st.booleans(), st.booleans())
def test_dense_transforms_are_the_formulas(values: list[float | None], log: bool, scale: bool) -> None:
    steps = ("log1p",) * log + ("standardise",) * scale
    transform = DenseTransform([Dense(name="x", transform=steps, missing=7.0)], {"x": Standard(3.0, 2.0)})
    raw = np.array([[math.nan if v is None else v] for v in values]).reshape(-1, 1)
    expected = []
    for value in values:
        x = 7.0 if value is None else value
        if value is not None and log:
            x = math.log(1 + max(x, 0.0))
        if value is not None and scale:
            x = min(max((x - 3.0) / 2.0, -LIMIT), LIMIT)
        expected.append(x)
    assert transform(raw)[:, 0] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("missing", [0.0, math.nan])
def test_standardized_values_alone_are_cut(missing: float) -> None:
    features = [
        Dense(name="far", transform=("standardise",)),
        Dense(name="unit", transform=("standardise",), missing=50.0),
        Dense(name="raw"),
    ]
    standards = {"far": Standard(3.0, 2.0), "unit": Standard(0.0, 1.0)}
    raw = np.array([[1e6, -70.0, 1e6], [4.0, missing, -70.0]], np.float32)
    expected = [[10.0, -10.0, 1e6], [0.5, 50.0 if math.isnan(missing) else 0.0, -70.0]]
    assert DenseTransform(features, standards)(raw).tolist() == expected


@pytest.mark.parametrize("steps", [(), ("standardise",)])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, 1e39])
def test_a_number_that_float32_cannot_hold_is_rejected_by_name(bad: float, steps: tuple[str, ...]) -> None:
    standards = {name: Standard(3.0, 2.0) for name in "xy"}
    transform = DenseTransform([Dense(name=name, transform=steps) for name in "xy"], standards)
    with pytest.raises(FeatureError, match=r"feature 'y': value .* is not a finite number \(row 1\)"):
        transform(np.array([[0.0, 0.0], [0.0, bad]]))


@pytest.mark.parametrize("steps", [(), ("standardise",)])
def test_a_required_number_must_not_be_missing(steps: tuple[str, ...]) -> None:
    transform = DenseTransform(
        [Dense(name=n, transform=steps) for n in "xy"], {"x": Standard(3.0, 2.0), "y": Standard(0.0, 1.0)}
    )
    raw = np.array([[1.0, math.nan]], np.float32)
    assert np.isfinite(transform(raw, required=1)).all()
    with pytest.raises(FeatureError, match=r"feature 'y': value nan is not a finite number \(row 0\)"):
        transform(raw, required=2)


def test_transformed_numbers_are_the_callers_own() -> None:
    raw = np.ones((2, 1), np.float32)
    transform = DenseTransform([Dense(name="x")], {})
    transform(raw)[0, 0] = 5.0
    assert raw.tolist() == [[1.0], [1.0]]
