from __future__ import annotations

import pytest

from polyrec.server.metrics.error_budget import EVERY_S, WINDOWS_S, ErrorBudget


def test_without_requests_there_are_no_figures() -> None:
    budget = ErrorBudget(0.99, 0)
    assert budget.used() is None
    assert budget.burn_rates() == dict.fromkeys(WINDOWS_S)


def test_a_miss_among_the_first_requests_is_no_figure_yet() -> None:
    budget = ErrorBudget(0.99, 0)
    budget.record(10, counted=99, missed=1)
    assert budget.used() is None
    assert budget.burn_rates() == dict.fromkeys(WINDOWS_S)
    budget.record(20, counted=100, missed=1)
    assert budget.used() == pytest.approx(1)


def test_a_burn_rate_of_one_uses_the_budget_exactly() -> None:
    budget = ErrorBudget(0.99, 0)
    budget.record(10, counted=1000, missed=10)
    assert budget.used() == pytest.approx(1)
    assert budget.burn_rates() == pytest.approx({"5m": 1, "1h": 1, "6h": 1})


def test_each_window_counts_its_own_requests() -> None:
    budget = ErrorBudget(0.99, 0)
    counted = missed = 0.0
    # 5.5 hours without a miss, half an hour in which every second request fails, ten minutes without
    for minute in range(1, 371):
        counted += 100
        missed += 50 if 330 < minute <= 360 else 0
        budget.record(60 * minute, counted, missed)
    rates = budget.burn_rates()
    assert rates["5m"] == 0
    assert rates["1h"] == pytest.approx(50 * 30 / 6000 / 0.01)
    assert rates["6h"] == pytest.approx(50 * 30 / 36000 / 0.01)
    assert budget.used() == pytest.approx(50 * 30 / 37000 / 0.01)


def test_the_counts_of_the_longest_window_are_kept_at_any_pace() -> None:
    budget = ErrorBudget(0.99, 0)
    longest_s = max(WINDOWS_S.values())
    budget.record(EVERY_S, counted=100, missed=100)
    end_s = int(2 * longest_s)
    for now_s in range(int(EVERY_S) + 1, end_s):
        budget.record(now_s, counted=100 + now_s, missed=100)
    assert budget.burn_rates() == pytest.approx({"5m": 0, "1h": 0, "6h": 0})
    assert budget.used() == pytest.approx(100 / (100 + end_s - 1) / 0.01)
