from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.measure.profile.fit import SizeSamples, fit, fit_error, isotonic, knots, points, tail_ratio
from polyrec.models.schema.batch import F64
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.profile import Point

seconds = st.floats(1e-6, 1.0)


def point(rows: int, p50: float, p99: float, samples: int = 100) -> Point:
    return Point(rows=rows, samples=samples, p50_s=p50, p90_s=p50, p99_s=p99, max_s=p99)


def constant(rows: int, median: float, count: int, rounds: int = 5) -> SizeSamples:
    return SizeSamples(rows, tuple(np.full(count, median) for _ in range(rounds)))


@st.composite
def ladders(draw: st.DrawFn) -> list[Point]:
    rows = sorted(draw(st.sets(st.integers(1, 4096), min_size=1, max_size=14)))
    return [point(r, draw(seconds), draw(seconds), draw(st.integers(0, 1000))) for r in rows]


@st.composite
def lines(draw: st.DrawFn) -> tuple[list[int], F64]:
    """(rows, seconds there): rising, piecewise linear between a few of the rows."""
    rows = sorted(draw(st.sets(st.integers(1, 4096), min_size=2, max_size=14)))
    kinks = sorted({0, len(rows) - 1} | draw(st.sets(st.integers(0, len(rows) - 1), max_size=3)))
    rises = [draw(st.floats(1e-6, 1e-2)) for _ in kinks]
    at = np.array(rows, np.float64)
    return rows, np.interp(at, at[kinks], np.cumsum(rises))


@given(ladders())
def test_a_model_of_anything_never_falls_and_its_tail_is_never_below_its_median(found: list[Point]) -> None:
    model = fit(found)
    asked = range(1, 5000, 37)
    for a, b in pairwise(asked):
        assert model.median(a) <= model.median(b) * (1 + 1e-12)
        assert model.tail(a) <= model.tail(b) * (1 + 1e-12)
        assert model.tail(a) >= model.median(a) * (1 - 1e-12)


@given(lines(), st.floats(1.0, 3.0))
def test_piecewise_linear_measurements_are_reproduced(line: tuple[list[int], F64], ratio: float) -> None:
    rows, medians = line
    model = fit([point(r, m, m * ratio) for r, m in zip(rows, medians.tolist(), strict=True)], tolerance=0)
    for r, m in zip(rows, medians.tolist(), strict=True):
        assert model.median(r) == pytest.approx(m, rel=1e-6)
        assert model.tail(r) == pytest.approx(m * ratio, rel=1e-6)


@given(lines())
def test_knots_are_left_out_only_within_the_tolerance(line: tuple[list[int], F64]) -> None:
    rows, medians = line
    found = [point(r, m, 2 * m) for r, m in zip(rows, medians.tolist(), strict=True)]
    model = fit(found, tolerance=0.1)
    assert len(model.rows) <= len(fit(found, tolerance=0.0).rows)
    for r, m in zip(rows, medians.tolist(), strict=True):
        assert model.median(r) == pytest.approx(m, rel=0.1 + 1e-6)


def test_a_straight_line_takes_two_knots() -> None:
    model = fit([point(r, 1e-4 + 1e-6 * r, 2e-4 + 2e-6 * r) for r in (1, 2, 4, 8, 16, 32)])
    assert model.rows == (1, 32)


@given(st.lists(seconds, min_size=1, max_size=30), st.data())
def test_isotonic_never_falls_and_keeps_rising_values(values: list[float], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 9), min_size=len(values), max_size=len(values)))
    level = isotonic(np.array(values), np.array(weights))
    assert (np.diff(level) >= 0).all()
    assert min(values) <= level.min()
    assert level.max() <= max(values)
    rising = np.sort(values)
    np.testing.assert_array_equal(isotonic(rising, np.array(weights)), rising)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_isotonic_has_the_least_absolute_deviation(values: list[int], data: st.DataObject) -> None:
    weights = np.array(
        data.draw(st.lists(st.integers(1, 3), min_size=len(values), max_size=len(values))), float
    )
    x = np.array(values, np.float64)
    got = (weights * np.abs(isotonic(x, weights) - x)).sum()
    # an optimum is among sequences that only take values of x
    grid = np.stack(np.meshgrid(*[np.unique(x)] * x.size, indexing="ij"), -1).reshape(-1, x.size)
    rising = grid[(np.diff(grid, axis=1) >= 0).all(axis=1)]
    assert got == pytest.approx((weights * np.abs(rising - x)).sum(axis=1).min())


@pytest.mark.parametrize("last_s", [0.9e-3, 1e-3, 1.001e-3, 1.02e-3])
def test_batches_beyond_a_flat_end_take_longer(last_s: float) -> None:
    """Sizes up to 512, the last two as slow: a plan accepted requests of 4,096 rows at the time of 256."""
    first = [point(1, 0.5e-3, 0.6e-3), point(128, 0.7e-3, 0.9e-3), point(256, 1e-3, 1.4e-3)]
    model = fit([*first, point(512, last_s, 1.4e-3)])
    assert model.median(512) == pytest.approx(last_s, rel=0.06)
    assert model.median(4096) > 4e-3
    assert model.tail(4096) > model.median(4096)


def test_batches_beyond_a_rising_end_follow_its_slope() -> None:
    model = fit([point(rows, 1e-3 + 1e-6 * rows, 2e-3 + 1e-6 * rows) for rows in (1, 128, 256, 512)])
    assert model.median(4096) == pytest.approx(1e-3 + 4096e-6)


def test_one_disturbed_size_does_not_move_the_others() -> None:
    true = {r: 1e-3 * r for r in (1, 2, 4, 8, 16, 32, 64, 128)}
    found = [point(r, 40 * s if r == 8 else s, 80 * s if r == 8 else 2 * s) for r, s in true.items()]
    model = fit(found)
    for r in (1, 2, 4, 64, 128):
        assert model.median(r) == pytest.approx(true[r], rel=0.03)


@given(st.integers(0, 4), st.floats(2, 100))
def test_a_disturbed_round_does_not_move_median_or_tail(disturbed: int, factor: float) -> None:
    random = np.random.default_rng(0)
    rounds = [1e-3 * random.lognormal(0, 0.1, 400) for _ in range(5)]
    (before,) = points([SizeSamples(64, tuple(rounds))])
    rounds[disturbed] = rounds[disturbed] * random.uniform(1, factor, 400)
    (after,) = points([SizeSamples(64, tuple(rounds))])
    assert after.p50_s == pytest.approx(before.p50_s, rel=0.05)
    assert after.p99_s == pytest.approx(before.p99_s, rel=0.1)


def test_percentiles_are_those_of_the_samples() -> None:
    random = np.random.default_rng(1)
    samples = 1e-3 * random.lognormal(0, 0.3, (5, 2000))
    (got,) = points([SizeSamples(64, tuple(samples))])
    assert got.samples == 10_000
    assert got.p50_s == pytest.approx(np.quantile(samples, 0.5), rel=0.02)
    assert got.p90_s == pytest.approx(np.quantile(samples, 0.9), rel=0.03)
    assert got.p99_s == pytest.approx(np.quantile(samples, 0.99), rel=0.06)
    assert got.max_s == samples.max()


def test_the_tail_of_few_samples_is_lent_by_neighbors_of_another_speed() -> None:
    random = np.random.default_rng(2)
    sizes = [
        SizeSamples(r, tuple(r * 1e-3 * random.lognormal(0, 0.3, (5, n))))
        for r, n in ((1, 300), (2, 9), (4, 300))
    ]
    whole = tail_ratio([SizeSamples(2, tuple(2e-3 * random.lognormal(0, 0.3, (5, 3000))))], 0)
    assert tail_ratio(sizes, 1) == pytest.approx(whole, rel=0.15)


def test_a_size_with_enough_samples_is_not_pooled() -> None:
    random = np.random.default_rng(3)
    wild = SizeSamples(2, tuple(random.lognormal(0, 2, (5, 300))))
    assert tail_ratio([constant(1, 1e-3, 300), wild], 0) == 1.0


def test_a_round_of_one_sample_still_tells_a_tail() -> None:
    rounds = tuple(np.array([s]) for s in (1.0, 1.0, 1.0, 1.0, 3.0))
    assert tail_ratio([SizeSamples(4096, rounds)], 0) > 2.5


def test_points_come_in_order_of_rows() -> None:
    got = points([constant(r, 1e-3, 3) for r in (64, 1, 8)], fitted=False)
    assert [p.rows for p in got] == [1, 8, 64]
    assert not any(p.fitted for p in got)


def test_the_error_is_the_mean_over_the_sizes_the_model_did_not_see() -> None:
    model = LatencyModel(rows=(1, 100), median_s=(1.0, 100.0), tail_s=(2.0, 200.0))
    error = fit_error(model, [point(10, 10.0, 20.0), point(50, 40.0, 100.0)])
    assert error is not None
    assert error.median == pytest.approx(0.125)
    assert error.tail == pytest.approx(0.0)
    assert fit_error(model, []) is None


def test_the_ends_of_a_curve_are_always_knots() -> None:
    rows = np.array([1.0, 2.0, 3.0])
    assert knots(rows, np.array([[1.0, 1.0, 1.0]]), np.array([[10.0]])) == [0, 2]
    assert knots(rows[:1], np.array([[1.0]]), np.array([[10.0]])) == [0]
