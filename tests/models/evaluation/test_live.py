from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.evaluation.comparison import draws, samples
from polyrec.models.evaluation.live import MIN_REQUESTS, RequestSums, ScoredRequest, estimate
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.schema.batch import F64


def scored(
    n: int, seed: int, models: int = 2, client: str | None = "shop", lies: bool = False
) -> list[ScoredRequest]:
    """Requests of a few rows; model 0 sees the truth, the others see it through more and more noise.

    lies: labels make the last model look better than model 0.
    """
    random = np.random.default_rng(seed)
    found = []
    for i in range(n):
        rows = int(random.integers(1, 6))
        truth = random.beta(1, 3, rows)
        labels = (random.random(rows) < truth).astype(np.float32)
        noise = random.normal(0, 0.2, (models, rows)) * np.arange(models)[:, None]
        scores = np.clip(truth + noise, 0.01, 0.99).astype(np.float32)
        if lies:
            labels = (scores[-1] > scores[0]).astype(np.float32)
        found.append(ScoredRequest(float(i), client, labels, scores))
    return found


def weights_of(n: int, resamples: int, seed: int) -> F64:
    return np.array([np.ones(n), *draws(n, resamples, seed)], np.float64)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 3))
def test_resamples_are_those_of_the_comparison_of_models(seed: int, n: int, models: int) -> None:
    requests = scored(n, seed, models)
    labels = np.concatenate([r.labels for r in requests])
    scores = np.concatenate([r.scores for r in requests], axis=1)
    groups = np.repeat(np.arange(n), [r.labels.size for r in requests])
    expected = samples(labels, list(scores), groups, 5, seed, ("information", "auc"))
    sums = RequestSums(requests)
    weights = weights_of(n, 5, seed)
    np.testing.assert_allclose(sums.information(weights), expected[:, :, 0], atol=1e-9, equal_nan=True)
    np.testing.assert_allclose(sums.auc(weights), expected[:, :, 1], atol=1e-9, equal_nan=True)


@given(st.integers(0, 10_000), st.integers(1, 20))
def test_calibration_is_that_of_repeated_rows(seed: int, n: int) -> None:
    requests = scored(n, seed)
    sums = RequestSums(requests)
    weights = weights_of(n, 1, seed)
    found = sums.calibration(weights)
    repeated = [r for r, times in zip(requests, weights[1].astype(int), strict=True) for _ in range(times)]
    for row, drawn in ((found[0], requests), (found[1], repeated)):
        labels = np.concatenate([r.labels for r in drawn])
        for m, value in enumerate(row):
            quality = evaluate(np.concatenate([r.scores[m] for r in drawn]), labels)
            assert value == pytest.approx(quality.calibration, rel=1e-6, nan_ok=True)


def test_a_better_model_is_shown_on_the_same_requests() -> None:
    found = estimate([*scored(400, 1), *scored(400, 2, client="app")], reference=0)
    assert found is not None
    best, noisy = found.models
    assert best.information.low < best.information.value < best.information.high
    assert noisy.difference.high < 0
    assert noisy.confirmed.high < 0
    assert noisy.confirmed.low <= noisy.difference.low
    assert best.confirmed.low == best.confirmed.high == 0
    assert found.clients == {"shop": 400, "app": 400}


@pytest.mark.parametrize("lies", [False, True])
def test_no_single_client_confirms_a_difference(lies: bool) -> None:
    """Not even one that labels nearly all requests, as it pleases."""
    requests = [*scored(800, 1, client="hostile", lies=lies), *scored(20, 2, client="app")]
    found = estimate(requests, reference=1)
    assert found is not None
    assert np.isnan(found.models[0].confirmed.low)
    alone = estimate(scored(400, 1), reference=1)
    trusted = estimate(scored(400, 1), reference=1, trusted=["shop"])
    assert alone is not None
    assert trusted is not None
    assert np.isnan(alone.models[0].confirmed.low)
    assert trusted.models[0].confirmed.low > 0


def test_hostile_client_widens_confirmed_intervals_but_cannot_reverse_them() -> None:
    honest = [*scored(200, 1), *scored(200, 2, client="app")]
    attacked = estimate([*honest, *scored(3000, 3, client="hostile", lies=True)], reference=1)
    before = estimate(honest, reference=1)
    assert attacked is not None
    assert before is not None
    assert before.models[0].confirmed.low > 0
    # without the hostile client, model 0 is better; with it, worse: nothing is confirmed
    assert attacked.models[0].confirmed.low < 0 < attacked.models[0].confirmed.high


def test_a_flood_without_labels_cannot_turn_a_difference() -> None:
    """Requests without labels count as negatives, which suit a path that predicts low."""
    honest = [replace(r, client=f"shop{i % 2}") for i, r in enumerate(scored(600, 1))]
    random = np.random.default_rng(2)
    flood = [
        ScoredRequest(
            1000.0 + i,
            None,
            np.zeros(3, np.float32),
            np.stack((random.uniform(0.3, 0.6, 3), np.full(3, 0.01))).astype(np.float32),
        )
        for i in range(2000)
    ]
    found = estimate([*honest, *flood], reference=0)
    assert found is not None
    assert found.models[1].difference.low > 0
    assert found.models[1].confirmed.low < 0


def test_few_positives_confirm_nothing() -> None:
    requests = scored(MIN_REQUESTS - 1, 1)
    found = estimate(requests, reference=0, trusted=["shop"])
    assert found is not None
    assert np.isnan(found.models[1].confirmed.low)


def test_odd_windows_are_undefined_rather_than_wrong() -> None:
    assert estimate([], reference=0) is None
    negatives = [ScoredRequest(0.0, None, r.labels * 0, r.scores) for r in scored(50, 1)]
    found = estimate(negatives, reference=0)
    assert found is not None
    assert np.isnan(found.models[0].information.value)
    assert np.isnan(found.models[0].auc.value)


def test_no_interval_if_a_tenth_of_resamples_is_undefined() -> None:
    requests = [replace(r, labels=r.labels * 0) for r in scored(50, 1)]
    requests[0] = replace(requests[0], labels=requests[0].labels + 1)
    # a third of the resamples lacks the only request with positives
    found = estimate(requests, reference=0)
    assert found is not None
    assert np.isfinite(RequestSums(requests).information(np.ones((1, 50)))).all()
    for interval in (found.models[0].information, found.models[0].calibration, found.models[0].auc):
        assert np.isnan([interval.value, interval.low, interval.high]).all()
    # of three in fifty, one resample in twenty
    requests[1:3] = [replace(r, labels=r.labels + 1) for r in requests[1:3]]
    found = estimate(requests, reference=0)
    assert found is not None
    assert found.models[0].information.low < found.models[0].information.high


def test_scores_that_are_not_finite_count_as_wrong() -> None:
    requests = scored(100, 1)
    broken = [ScoredRequest(r.at_s, r.client, r.labels, r.scores * np.nan) for r in requests]
    found = estimate(broken, reference=0)
    assert found is not None
    assert found.models[0].information.value < -5
