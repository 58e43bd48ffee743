"""Observed traffic: rates, sizes and budgets follow the arrivals."""

import numpy as np
import pytest

from polyrec.planner.routing.observed_traffic import KEPT, SIZES_MEMORY_S, ObservedTraffic

URGENT = "urgent_s", "urgent_mean", "urgent_square", "variance_s"


def watch(times: np.ndarray, rows: np.ndarray, until_s: float) -> ObservedTraffic:
    observed = ObservedTraffic(0.0)
    at = 0
    for tick_s in np.arange(0.1, until_s + 1e-9, 0.1):
        while at < times.size and times[at] < tick_s:
            observed.record_arrival(int(rows[at]), 0.05)
            at += 1
        observed.tick(float(tick_s))
    return observed


def poisson(rate: float, seconds: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(rng.random(rng.poisson(rate * seconds)) * seconds)


def test_rates_sizes_and_budget_are_those_of_the_traffic():
    times = poisson(2000, 4)
    observed = watch(times, np.resize([10, 30], times.size), 4.0)
    assert observed.queries_s == pytest.approx(2000, rel=0.1)
    assert observed.rows_s == pytest.approx(40_000, rel=0.1)
    assert observed.mean_rows == pytest.approx(20, rel=0.02)
    assert observed.urgent_s == observed.rows_s
    assert observed.urgent_mean == observed.mean_rows
    assert observed.urgent_square == observed.mean_square
    assert observed.urgent_square == pytest.approx(500, rel=0.02)
    assert observed.budget_s == 0.05
    assert observed.size_quantiles((0.0, 1.0)) == (10, 30)


def test_the_first_tick_gives_the_rate():
    times = np.arange(0, 0.1, 1e-3)
    assert watch(times, np.full(100, 10), 0.1).queries_s == pytest.approx(1000, rel=0.05)


def test_a_step_is_known_within_half_a_second():
    times = np.concatenate([poisson(200, 3), 3 + poisson(2000, 0.5, 1)])
    assert watch(times, np.full(times.size, 10), 3.5).queries_s > 1500


def test_bursts_vary_more_than_poisson_and_a_drift_does_not():
    steady = watch(poisson(1000, 6), np.full(9000, 10), 6.0)
    bursts = np.sort(np.concatenate([poisson(500, 6), np.repeat(np.arange(0, 6, 0.37), 185)]))
    bursty = watch(bursts, np.full(bursts.size, 10), 6.0)
    drifting = np.sort(6 * np.sqrt(np.random.default_rng(3).random(6000)))
    drift = watch(drifting, np.full(drifting.size, 10), 6.0)
    assert bursty.variance_s > 4 * steady.variance_s
    assert drift.variance_s < 3 * steady.variance_s
    assert steady.variance_s >= 0.9 * 1000 * 100


def test_rates_are_zero_without_observations():
    observed = ObservedTraffic(0.0)
    observed.tick(0.1)
    assert (observed.queries_s, observed.rows_s) == (0, 0)
    assert observed.size_quantiles((0.5,)) == ()


def test_sizes_and_budgets_are_those_of_the_last_queries():
    rng = np.random.default_rng(0)
    rows, budgets = rng.integers(1, 4097, 3 * KEPT + 7), rng.random(3 * KEPT + 7)
    observed = ObservedTraffic(0.0)
    for n, budget_s in zip(rows.tolist(), budgets.tolist(), strict=True):
        observed.record_arrival(n, budget_s)
    observed.tick(0.1)
    assert observed.mean_rows == rows[-KEPT:].mean()
    assert observed.mean_square == pytest.approx(np.square(rows[-KEPT:]).mean())
    assert observed.budget_s == np.median(budgets[-KEPT:])
    urgent = [n * min(1, observed.budget_s / b) for n, b in zip(rows[-KEPT:], budgets[-KEPT:], strict=True)]
    assert observed.urgent_mean == pytest.approx(np.mean(urgent))
    assert observed.urgent_square == pytest.approx(np.mean(np.square(urgent)))


def test_only_a_share_of_large_queries_with_ample_time_is_urgent():
    observed, without = ObservedTraffic(0.0), ObservedTraffic(0.0)
    for tick in range(1, 60):
        for each in (observed, without):
            for _ in range(50):
                each.record_arrival(20, 0.01)
        observed.record_arrival(2000, 1.0)
        for each in (observed, without):
            each.tick(tick / 10)
    assert observed.rows_s == pytest.approx(3 * without.rows_s)
    assert observed.urgent_s == pytest.approx(1.02 * without.urgent_s)
    for name in URGENT[1:]:
        assert getattr(observed, name) == pytest.approx(getattr(without, name), rel=0.03), name


def test_impossible_queries_count_in_the_rate_of_all_only():
    observed, without = ObservedTraffic(0.0), ObservedTraffic(0.0)
    for tick in range(1, 20):
        for _ in range(5):
            observed.record_arrival(25, 0.02)
            without.record_arrival(25, 0.02)
            observed.record_arrival(4096, 1e-6, possible=False, attempted=False)
        observed.tick(tick / 10)
        without.tick(tick / 10)
    assert observed.queries_s == pytest.approx(2 * without.queries_s)
    for name in (
        "possible_s",
        "demand_rows_s",
        "rows_s",
        "high_rows_s",
        "mean_rows",
        "mean_square",
        "budget_s",
        *URGENT,
    ):
        assert getattr(observed, name) == getattr(without, name), name


def test_sizes_and_budgets_are_forgotten_with_time_although_few_follow():
    observed = ObservedTraffic(0.0)
    for _ in range(KEPT):
        observed.record_arrival(4096, 10.0)
    observed.tick(0.1)
    for second in range(1, 12):
        observed.record_arrival(25, 0.02)
        observed.tick(float(second))
        assert (observed.mean_rows == 25) == (second >= max(8, 0.1 + SIZES_MEMORY_S)), second
    assert (observed.urgent_square, observed.budget_s) == (625, 0.02)


def test_sizes_are_those_of_all_queries_of_the_last_seconds():
    """Few large queries at the end of each second neither stand for the others nor are forgotten."""
    times = np.concatenate([second + np.linspace(0.0, 0.99, 58) for second in range(12)])
    rows = np.tile(np.repeat([10, 200], [50, 8]), 12)
    observed = watch(times, rows, 12.0)
    recent = rows[times > 12.0 - SIZES_MEMORY_S]
    assert recent.size < KEPT
    assert observed.mean_rows == pytest.approx(recent.mean(), rel=0.05)
    assert observed.mean_square == pytest.approx(np.square(recent).mean(), rel=0.05)
