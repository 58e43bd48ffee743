from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.quality.repeats import Difference, summarize_runs
from polyrec.models.evaluation.comparison import METRICS, Interval, compare, samples, widened

ROWS = 400


def runs(models: dict[str, float], seeds: int, spread: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(labels, predictions [models * seeds, rows]); each model has its noise, each run `spread` more."""
    random = np.random.default_rng(0)
    truth = random.random(ROWS)
    label = (random.random(ROWS) < truth).astype(np.float32)
    shared = random.normal(0, 1, ROWS)
    found = []
    for noise in models.values():
        for _ in range(seeds):
            more = spread * abs(random.normal())
            found.append(np.clip(truth + (noise + more) * shared, 0.02, 0.98).astype(np.float32))
    return label, np.stack(found)


def test_mean_spread_and_differences_are_those_of_plain_arithmetic() -> None:
    label, p = runs({"a": 0.1, "b": 0.2}, seeds=3, spread=0.05)
    drawn = samples(label, list(p), resamples=40)
    found = summarize_runs(drawn, ["a", "b"], "a")
    losses = drawn[0, :, METRICS.index("log_loss")]
    own = found["b"].metrics["log_loss"]
    assert (own.mean, own.deviation) == pytest.approx((losses[3:].mean(), losses[3:].std(ddof=1)))
    pairs = losses[3:] - losses[:3]
    difference = (found["b"].to_baseline or {})["log_loss"]
    low, high = stats.t.interval(0.95, 2, pairs.mean(), stats.sem(pairs))
    over = difference.over_seeds
    assert (over.value, over.low, over.high) == pytest.approx((pairs.mean(), low, high), rel=1e-4)
    assert found["a"].to_baseline is None


def test_one_run_has_the_intervals_of_a_plain_comparison_and_no_spread() -> None:
    label, p = runs({"a": 0.1, "b": 0.3}, seeds=1)
    drawn = widened(samples(label, list(p), resamples=60), label, None)
    found = summarize_runs(drawn, ["a", "b"], "a")["b"]
    plain = compare(label, {"a": p[0], "b": p[1]}, "a", resamples=60)["b"]
    assert found.to_baseline is not None
    assert plain.to_baseline is not None
    for metric in METRICS:
        assert found.to_baseline[metric].over_rows == plain.to_baseline[metric]
        assert math.isnan(found.metrics[metric].deviation)
    assert found.to_baseline["log_loss"].verdict == "worse"


def differing(rows: tuple[float, float], seeds: tuple[float, float]) -> Difference:
    middle = sum(rows) / 2
    return Difference("auc", Interval(middle, *rows), Interval(middle, *seeds))


@pytest.mark.parametrize(
    ("rows", "seeds", "said"),
    [
        ((0.1, 0.3), (0.1, 0.3), "better"),
        ((-0.3, -0.1), (-0.3, -0.1), "worse"),
        ((0.1, 0.3), (-0.1, 0.5), "unclear"),
        ((-0.1, 0.5), (0.1, 0.3), "unclear"),
        ((0.1, 0.3), (math.nan, math.nan), "better"),
        ((0.0, 0.0), (0.0, 0.0), "identical"),
    ],
)
def test_a_difference_is_real_where_rows_and_seeds_both_say_so(
    rows: tuple[float, float], seeds: tuple[float, float], said: str
) -> None:
    assert differing(rows, seeds).verdict == said


def test_a_metric_that_is_not_defined_has_no_verdict() -> None:
    _, p = runs({"a": 0.1, "b": 0.2}, seeds=2)
    found = summarize_runs(samples(np.zeros(ROWS, np.float32), list(p), resamples=5), ["a", "b"], "a")["b"]
    assert (found.to_baseline or {})["auc"].verdict == "undefined"
