from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from polyrec.models.evaluation.comparison import (
    METRICS,
    POSSIBLE,
    Interval,
    Metric,
    SortedScores,
    compare,
    draws,
    pareto,
    samples,
    student_quantile,
    verdict,
)
from polyrec.models.evaluation.metrics import auc
from polyrec.models.schema.batch import F32, I64


def noisy(rows: int, models: int, seed: int, noise: float = 0.15) -> tuple[F32, dict[str, F32]]:
    """Labels, and equally good models `m0`, `m1`, ... that each see the truth through their own noise."""
    random = np.random.default_rng(seed)
    truth = random.random(rows)
    label = (random.random(rows) < truth).astype(np.float32)
    seen = truth[:, None] + random.normal(0, noise, (rows, models))
    p = np.clip(seen, 0.02, 0.98).astype(np.float32)
    return label, {f"m{i}": p[:, i] for i in range(models)}


@given(st.integers(0, 10_000), st.integers(2, 50), st.integers(1, 12))
def test_auc_under_weights_is_that_of_repeated_rows(seed: int, rows: int, levels: int) -> None:
    random = np.random.default_rng(seed)
    p = random.integers(0, levels, rows).astype(np.float32) / levels
    y = random.integers(0, 2, rows).astype(np.float32)
    weights = random.integers(0, 4, rows)
    expected = auc(np.repeat(p, weights), np.repeat(y, weights)) if weights.any() else float("nan")
    assert SortedScores(p, y).auc(weights) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("grouped", [False, True])
def test_intervals_are_those_of_a_plain_loop_over_resamples(grouped: bool) -> None:
    y, predictions = noisy(300, 3, seed=1)
    groups = np.random.default_rng(2).integers(-5, 40, 300) * 7 if grouped else None
    units = np.unique(groups) if groups is not None else np.arange(300)
    found = compare(y, predictions, "m1", groups, resamples=50, level=0.9, seed=3)

    random = np.random.default_rng(3)
    samples: dict[str, list[list[float]]] = {name: [] for name in predictions}
    for _ in range(50):
        drawn = units[random.integers(0, units.size, units.size)]
        of_unit = [np.flatnonzero((groups if groups is not None else units) == u) for u in drawn]
        rows = np.concatenate(of_unit)
        for name, p in predictions.items():
            base = y[rows].mean(dtype=np.float64)
            entropy = -base * np.log(base) - (1 - base) * np.log(1 - base)
            samples[name].append(
                [
                    1 - metrics.log_loss(y[rows], p[rows].astype(np.float64)) / entropy,
                    metrics.roc_auc_score(y[rows], p[rows]),
                    metrics.log_loss(y[rows], p[rows].astype(np.float64)),
                    metrics.accuracy_score(y[rows], p[rows] > 0.5),
                ]
            )
    base = np.array(samples["m1"])
    # of clicks and others, the fewer units, as in an interval of their mean by Student's distribution
    n = min(np.unique((groups if groups is not None else units)[y == label]).size for label in (0, 1))
    wide = stats.t.ppf(0.975, n - 1) / stats.norm.ppf(0.975) * np.sqrt(n / (n - 1))
    for name, standing in found.items():
        drawn_metrics = np.array(samples[name])
        for i, metric in enumerate(METRICS):
            value = standing.metrics[metric].value
            low, high = value + wide * (np.quantile(drawn_metrics[:, i], [0.05, 0.95]) - value)
            interval = standing.metrics[metric]
            assert [interval.low, interval.high] == pytest.approx([low, high], rel=1e-5)
            if standing.to_baseline is not None:
                interval = standing.to_baseline[metric]
                low, high = np.quantile(drawn_metrics[:, i] - base[:, i], [0.05, 0.95])
                low, high = (interval.value + wide * (end - interval.value) for end in (low, high))
                assert [interval.low, interval.high] == pytest.approx([low, high], rel=1e-5)
    assert found["m1"].to_baseline is None


def test_values_are_those_of_the_rows_as_they_are() -> None:
    y, predictions = noisy(200, 2, seed=4)
    found = compare(y, predictions, "m0", resamples=2)
    for name, p in predictions.items():
        assert found[name].metrics["auc"].value == pytest.approx(metrics.roc_auc_score(y, p))
        assert found[name].metrics["log_loss"].value == pytest.approx(
            metrics.log_loss(y, p.astype(np.float64))
        )
    to_baseline = found["m1"].to_baseline
    assert to_baseline is not None
    for metric in METRICS:
        assert to_baseline[metric].value == pytest.approx(
            found["m1"].metrics[metric].value - found["m0"].metrics[metric].value
        )


def test_equally_good_models_differ_as_often_as_the_level_allows() -> None:
    called = 0
    for seed in range(200):
        y, predictions = noisy(200, 2, seed)
        standing = compare(y, predictions, "m0", resamples=200, level=0.9, seed=seed)["m1"]
        called += standing.verdict("log_loss") != "unclear"
    # binomial(200, 0.1) lies in here 99.8% of the time
    assert 8 <= called <= 34


@pytest.mark.parametrize("share", [0.9, 0.975, 0.99])
def test_quantiles_of_students_distribution_are_those_of_scipy(share: float) -> None:
    for freedom in (1, 2, 3, 4, 5, 9, 30, 1000):
        expected = stats.t.ppf(share, freedom)
        assert student_quantile(share, freedom) == pytest.approx(expected, rel=6e-3 if freedom == 3 else 2e-3)


def test_few_clicks_seldom_show_the_worse_model_as_better() -> None:
    """The plain bootstrap showed the worse model as better in 13 of 100 test sets of one to six clicks."""
    random = np.random.default_rng(8)
    wrong = 0
    for _ in range(100):
        z = random.normal(size=500)
        y = (random.random(z.size) < 1 / (1 + np.exp(6 - z))).astype(np.float32)
        if not y.any():
            continue
        odds = {"good": z, "worse": 0.7 * z + 0.3 * random.normal(size=z.size)}
        p = {name: (1 / (1 + np.exp(6 - x))).astype(np.float32) for name, x in odds.items()}
        wrong += compare(y, p, "good", resamples=100)["worse"].verdict("information") == "better"
    assert wrong <= 5


@pytest.mark.parametrize("clicks", [1, 2, 3, 6])
def test_intervals_of_few_clicks_have_only_possible_values(clicks: int) -> None:
    random = np.random.default_rng(clicks)
    y = (np.arange(200) < clicks).astype(np.float32)
    p = (0.05 + 0.02 * y + 0.02 * random.normal(size=y.size)).clip(0.001, 0.9).astype(np.float32)
    found = compare(y, {"m": p}, "m", resamples=100)["m"].metrics
    for metric, (least, most) in zip(METRICS, POSSIBLE, strict=True):
        interval = found[metric]
        assert least <= interval.low <= interval.value <= interval.high <= most


def test_pairing_finds_a_difference_that_the_separate_intervals_hide() -> None:
    y, predictions = noisy(2000, 1, seed=5, noise=0.0)
    random = np.random.default_rng(6)
    worse = np.clip(predictions["m0"] + random.normal(0, 0.08, 2000), 0.02, 0.98).astype(np.float32)
    found = compare(y, predictions | {"worse": worse}, "m0", resamples=300)
    assert found["worse"].verdict("log_loss") == "worse"
    assert found["worse"].metrics["log_loss"].low < found["m0"].metrics["log_loss"].high


def test_repeating_the_rows_of_each_request_narrows_nothing() -> None:
    y, predictions = noisy(150, 2, seed=7)
    groups = np.arange(150)
    once = compare(y, predictions, "m0", groups, resamples=100)
    copied = {name: np.repeat(p, 5) for name, p in predictions.items()}
    repeated = compare(np.repeat(y, 5), copied, "m0", np.repeat(groups, 5), resamples=100)
    for name in predictions:
        for metric in METRICS:
            a, b = once[name].metrics[metric], repeated[name].metrics[metric]
            assert [a.value, a.low, a.high] == pytest.approx([b.value, b.low, b.high])


def test_a_model_compared_with_its_own_predictions_is_identical() -> None:
    y, predictions = noisy(60, 1, seed=8)
    found = compare(y, {"a": predictions["m0"], "b": predictions["m0"].copy()}, "a", resamples=20)
    assert {found["b"].verdict(metric) for metric in METRICS} == {"identical"}
    assert found["a"].verdict("auc") is None


def test_auc_of_one_class_is_undefined_and_the_rest_is_not() -> None:
    _, predictions = noisy(30, 2, seed=9)
    found = compare(np.zeros(30, np.float32), predictions, "m0", resamples=20)["m1"]
    assert found.verdict("auc") == "undefined"
    assert found.verdict("log_loss") != "undefined"


def test_equal_seeds_give_equal_intervals() -> None:
    y, predictions = noisy(80, 2, seed=10)
    first, second, other = (compare(y, predictions, "m0", resamples=30, seed=s)["m1"] for s in (1, 1, 2))
    assert first == second
    assert first != other


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 100))
def test_every_draw_has_as_many_units_as_there_are(units: int, resamples: int, seed: int) -> None:
    drawn = list(draws(units, resamples, seed))
    assert len(drawn) == resamples
    assert all(w.size == units and w.sum() == units for w in drawn)


@pytest.mark.parametrize(
    ("metric", "difference", "said"),
    [
        ("auc", Interval(0.01, 0.001, 0.02), "better"),
        ("auc", Interval(-0.01, -0.02, -0.001), "worse"),
        ("auc", Interval(0.01, -0.001, 0.02), "unclear"),
        ("accuracy", Interval(0.01, 0.0, 0.02), "unclear"),
        ("accuracy", Interval(-0.01, -0.02, 0.0), "unclear"),
        ("log_loss", Interval(-0.01, -0.02, -0.001), "better"),
        ("log_loss", Interval(0.01, 0.001, 0.02), "worse"),
        ("log_loss", Interval(0.0, 0.0, 0.0), "identical"),
        ("auc", Interval(float("nan"), float("nan"), float("nan")), "undefined"),
    ],
)
def test_a_difference_is_real_where_its_interval_excludes_zero(
    metric: str, difference: Interval, said: str
) -> None:
    assert verdict(metric, difference) == said  # type: ignore[arg-type]


def test_an_unknown_baseline_is_rejected() -> None:
    y, predictions = noisy(10, 1, seed=0)
    with pytest.raises(ValueError, match="baseline 'nope'"):
        compare(y, predictions, "nope")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_pareto_front_is_undominated(points: list[tuple[int, int]]) -> None:
    def beats(a: tuple[int, int], b: tuple[int, int]) -> bool:
        return a[0] <= b[0] and a[1] >= b[1] and a != b

    cost, quality = np.array(points, np.float64).T
    expected = [not any(beats(other, point) for other in points) for point in points]
    assert pareto(cost, quality).tolist() == expected


def test_a_quality_that_is_not_defined_is_not_on_the_front() -> None:
    cost, quality = np.array([1.0, 2.0]), np.array([np.nan, 0.5])
    assert pareto(cost, quality).tolist() == [False, True]


def test_labels_need_not_be_grouped_in_runs() -> None:
    y, predictions = noisy(100, 2, seed=11)
    groups: I64 = np.arange(100) % 10
    order = np.argsort(groups, kind="stable")
    mixed = compare(y, predictions, "m0", groups, resamples=20)
    sorted_ = compare(
        y[order], {n: p[order] for n, p in predictions.items()}, "m0", groups[order], resamples=20
    )
    for metric in METRICS:
        assert mixed["m1"].metrics[metric].low == pytest.approx(sorted_["m1"].metrics[metric].low)


@pytest.mark.parametrize("metric", ["mrr", "ndcg"])
def test_rankings_are_undefined_without_groups_or_positives(metric: Metric) -> None:
    y, predictions = noisy(20, 1, seed=7)
    p = predictions["m0"]
    assert np.isnan(samples(y, [p], None, 3, metrics=(metric,))).all()
    groups = np.arange(20) // 4
    assert np.isnan(samples(y * 0, [p], groups, 3, metrics=(metric,))).all()
    assert np.isfinite(samples(y, [p], groups, 3, metrics=(metric,))).all()
