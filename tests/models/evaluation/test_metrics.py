from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from polyrec.models.evaluation.comparison import samples
from polyrec.models.evaluation.metrics import auc, evaluate, log_loss


@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 12))
def test_auc_and_log_loss_equal_scikit_learn(seed: int, rows: int, levels: int) -> None:
    random = np.random.default_rng(seed)
    p = (random.integers(0, levels, rows) + 0.5).astype(np.float32) / (levels + 1)
    y = random.integers(0, 2, rows).astype(np.float32)
    y[0], y[1] = 0, 1
    assert auc(p, y) == pytest.approx(metrics.roc_auc_score(y, p), abs=1e-12)
    assert log_loss(p, y) == pytest.approx(metrics.log_loss(y, p.astype(np.float64)), abs=1e-9)


@given(st.integers(0, 10_000), st.integers(1, 8))
def test_ranking_metrics_equal_a_loop_over_groups(seed: int, groups: int) -> None:
    random = np.random.default_rng(seed)
    group = random.integers(0, groups, 40)
    p = random.integers(0, 6, 40).astype(np.float32) / 7
    y = (random.random(40) < 0.2).astype(np.float32)
    reciprocal, top, gains = [], [], []
    for g in np.unique(group):
        scores, labels = p[group == g], y[group == g]
        if not labels.any():
            continue
        best = scores[labels > 0].max()
        above, ties = (scores > best).sum(), (scores == best).sum()
        reciprocal.append(1 / (above + (ties + 1) / 2))
        top.append((1 / ties) if above == 0 else 0.0)
        gains.append(metrics.ndcg_score([labels], [scores]) if labels.size > 1 else 1.0)
    quality = evaluate(p, y, group)
    assert quality.groups == len(reciprocal)
    if reciprocal:
        assert quality.mrr == pytest.approx(np.mean(reciprocal))
        assert quality.top1 == pytest.approx(np.mean(top))
        assert quality.ndcg == pytest.approx(np.mean(gains))


def test_a_constant_base_rate_has_normalised_entropy_and_calibration_of_one() -> None:
    y = np.array([1, 0, 0, 0], np.float32)
    quality = evaluate(np.full(4, 0.25, np.float32), y)
    assert quality.normalised_entropy == pytest.approx(1.0)
    assert quality.calibration == pytest.approx(1.0)
    assert quality.auc == pytest.approx(0.5)
    assert quality.accuracy == 0.75
    assert quality.mrr is None


def test_metrics_that_are_not_defined_are_none_in_json() -> None:
    quality = evaluate(np.array([0.1, 0.2], np.float32), np.zeros(2, np.float32))
    assert math.isnan(quality.auc)
    assert quality.as_dict()["auc"] is None


def test_predictions_of_another_length_are_rejected() -> None:
    with pytest.raises(ValueError, match="predictions for"):
        evaluate(np.zeros(2, np.float32), np.zeros(3, np.float32))


def test_sampled_negatives_count_as_the_rows_they_stand_for() -> None:
    random = np.random.default_rng(0)
    y = (random.random(400) < 0.2).astype(np.float32)
    p = random.random(400).astype(np.float32)
    copies = np.where(y > 0, 1, 4)
    whole = evaluate(np.repeat(p, copies), np.repeat(y, copies))
    sampled = evaluate(p, y, negatives_kept=0.25)
    for name in ("auc", "log_loss", "information", "accuracy", "calibration"):
        assert getattr(sampled, name) == pytest.approx(getattr(whole, name)), name


@pytest.mark.parametrize("grouped", [False, True])
def test_the_error_of_information_is_the_spread_of_resamples(grouped: bool) -> None:
    random = np.random.default_rng(1)
    y = (random.random(2000) < 0.3).astype(np.float32)
    p = np.clip(0.3 + 0.3 * (y - 0.3) + random.normal(0, 0.1, 2000), 0.01, 0.99).astype(np.float32)
    groups = np.arange(2000) // 8 if grouped else None
    found = evaluate(p, y, groups).information_error
    drawn = samples(y, [p], groups, 400, metrics=("log_loss",))[1:, 0, 0]
    base = float(y.mean())
    entropy = -base * np.log(base) - (1 - base) * np.log(1 - base)
    assert found == pytest.approx(drawn.std() / entropy, rel=0.15)
