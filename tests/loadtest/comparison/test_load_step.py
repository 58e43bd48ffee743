from __future__ import annotations

import numpy as np
import pytest

from polyrec.loadtest.comparison.load_step import quality_by_time, step_of
from tests.loadtest.runs import outcome_of

QUALITY = {"good@cpu": 0.9, "fast@cpu": 0.8}
UP, DOWN, END = 6.0, 16.0, 26.0


def stepped(fast_from: float, fast_to: float, late: int = 0, rejected: int = 0) -> object:
    """100 requests a second, 500 within the step; the fast path answers in [fast_from, fast_to)."""
    due = np.concatenate([np.arange(0, UP, 0.01), np.arange(UP, DOWN, 0.002), np.arange(DOWN, END, 0.01)])
    path = ((due >= fast_from) & (due < fast_to)).astype(int)
    first = int(np.searchsorted(due, UP))
    latency, status = np.full(due.size, 0.005), np.full(due.size, 200)
    latency[first : first + late] = 0.02
    status[first + late : first + late + rejected] = 429
    return step_of(
        outcome_of(due, latency, status=status, path=path, seconds=END), QUALITY, UP, DOWN, 100.0, 5.0
    )


def test_time_to_adapt_and_to_return_is_computed_from_the_quality_of_answers() -> None:
    step = stepped(UP + 0.5, DOWN + 1.2)
    assert step.bent_s == pytest.approx(0.5, abs=0.11)
    assert step.returned_s == pytest.approx(1.2, abs=0.11)
    assert step.before.quality == 0.9
    assert step.high.quality == pytest.approx(0.8)


def test_a_policy_of_constant_quality_returns_at_once() -> None:
    step = stepped(0.0, END)
    assert (step.bent_s, step.returned_s) == (0.0, 0.0)


def test_quality_that_is_not_back_by_the_end_has_no_time() -> None:
    assert stepped(UP, END).returned_s is None


def test_rejected_requests_are_not_late_ones() -> None:
    step = stepped(UP, DOWN, late=30, rejected=60)
    n = 500 + 2500  # five seconds on each side of the step
    assert step.up.ok == pytest.approx(1 - 90 / n, abs=1e-3)
    assert step.up.refused == pytest.approx(60 / n, abs=1e-3)
    assert step.up.late == pytest.approx(30 / n, abs=1e-3)
    assert step.up.ok_of_taken == pytest.approx(1 - 30 / (n - 60), abs=1e-3)
    assert step.down.ok == 1.0


def test_a_moment_without_answers_keeps_the_quality_before_it() -> None:
    run = outcome_of([0.05, 0.15, 0.55], path=[0, 1, 0], seconds=0.6)
    at, mean = quality_by_time(run, QUALITY)
    assert at.tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert mean.tolist() == pytest.approx([0.9, 0.8, 0.8, 0.8, 0.8, 0.9])
