from __future__ import annotations

from polyrec.loadtest.comparison.comparison import Conditions, Trial
from polyrec.loadtest.results.figures import Figures, figures
from polyrec.report.load.policies import doubts
from tests.loadtest.runs import outcome_of

CONDITIONS = Conditions(slo_s=0.01)
WELL, BADLY = 1.0, 0.9


def run_with(in_budget: float) -> Figures:
    status = [200] * round(100 * in_budget) + [429] * round(100 * (1 - in_budget))
    return figures(outcome_of([i / 100 for i in range(100)], status=status), {})


def test_a_capacity_that_a_later_run_contradicts_is_doubtful() -> None:
    trial = Trial(
        capacity=800.0, ladder={900.0: [run_with(BADLY)], 500.0: [run_with(BADLY)], 300.0: [run_with(WELL)]}
    )
    (doubt,) = doubts({"priced": trial}, CONDITIONS, paths=2)
    assert "capacity of priced is doubtful: found 800/s, but later at 500/s 90.00%" in doubt
    trial.ladder[500.0] = [run_with(BADLY), run_with(WELL), run_with(WELL)]
    assert doubts({"priced": trial}, CONDITIONS, paths=2) == []


def test_policies_of_one_path_differ_by_noise() -> None:
    trials = {"static:a@cpu": Trial(), "priced": Trial()}
    (doubt,) = doubts(trials, CONDITIONS, paths=1)
    assert "one path" in doubt
    assert doubts(trials, CONDITIONS, paths=2) == []
