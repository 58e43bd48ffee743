"""Tests polyrec.models.training.objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize

from polyrec.models.dlrm.dlrm import Architecture, DenseNet
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.evaluation.metrics import log_loss
from polyrec.models.schema.batch import F32, F64
from polyrec.models.training.objective import (
    HALF_AT,
    MAX_SCALE,
    MIN_SCALE,
    SCALE_WEIGHT,
    SHIFT_WEIGHT,
    LogitScale,
    fit_scale,
    listwise_loss,
)


def slow_listwise(logits: torch.Tensor, label: torch.Tensor, group: np.ndarray) -> float:
    total = 0.0
    for head in logits:
        for g in np.unique(group):
            rows = torch.from_numpy(np.flatnonzero(group == g))
            if label[rows].sum() > 0:
                target = label[rows] / label[rows].sum()
                total -= float((target * head[rows].log_softmax(0)).sum())
    return total / label.numel()


def test_listwise_loss_is_the_softmax_cross_entropy_of_each_request() -> None:
    random = np.random.default_rng(0)
    group = random.integers(0, 12, 90) * 7 - 3
    label = torch.from_numpy((random.random(90) < 0.15).astype(np.float32))
    logits = torch.from_numpy(random.normal(0, 30, (2, 90)).astype(np.float32)).requires_grad_()
    loss = listwise_loss(logits, label, group)
    assert float(loss.detach()) == pytest.approx(slow_listwise(logits.detach(), label, group), rel=1e-5)
    loss.backward()
    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())


def test_a_request_without_a_positive_counts_nothing() -> None:
    assert float(listwise_loss(torch.ones(1, 3), torch.zeros(3), np.zeros(3, np.int64))) == 0.0


def test_fitted_scale_undoes_a_known_distortion() -> None:
    random = np.random.default_rng(1)
    z = random.normal(-2, 1.5, 200_000)
    label = (random.random(z.size) < 1 / (1 + np.exp(-z))).astype(np.float32)
    found = fit_scale((1 / (1 + np.exp(-(0.5 * z + 1)))).astype(np.float32), label, 0.2)
    assert found.scale == pytest.approx(2.0, abs=0.05)
    assert found.shift == pytest.approx(-2.0, abs=0.05)


@pytest.mark.parametrize("rows", [24, 200, 2000])
@pytest.mark.parametrize("worth", [0.0, 1.0])
def test_a_fit_on_few_rows_makes_new_rows_no_worse_than_the_base_rate(rows: int, worth: float) -> None:
    random = np.random.default_rng(rows)

    def drawn(n: int) -> tuple[F32, F32]:
        z = random.normal(size=n)
        label = random.random(n) < sigmoid(-2 + worth * z)
        return sigmoid(-2 + 1.5 * z).astype(np.float32), label.astype(np.float32)

    new, clicked = drawn(20_000)
    constant = log_loss(np.full(new.size, clicked.mean(), np.float32), clicked)
    losses = []
    for _ in range(50):
        scale = fit_scale(*drawn(rows), sigmoid(np.array(-2.0)).item())
        logit = np.log(new / (1 - new))
        losses.append(log_loss(sigmoid(scale.scale * logit + scale.shift), clicked) / constant)
    assert max(losses) < 1.2
    assert np.mean(losses) < 1.03


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_alone_leaves_little_but_the_base_rate(label: float) -> None:
    p = np.array([0.1, 0.2, 0.8, 0.9], np.float32)
    found = fit_scale(p, np.full(4, label, np.float32), 0.5)
    assert found.scale < 0.1
    assert 0 < abs(found.shift) < 0.2
    assert (found.shift > 0) == bool(label)


def test_a_model_that_was_trained_before_keeps_its_scale_where_few_rows_tell() -> None:
    z = np.linspace(-3, 1, 30)
    label = (z > 0.5).astype(np.float32)
    found = fit_scale(sigmoid(z).astype(np.float32), label, 0.2, trained_before=True)
    assert 0.9 < found.scale < 1.6
    assert fit_scale(sigmoid(z).astype(np.float32), label, 0.2).scale < 0.8


def test_ranks_are_kept_where_the_model_is_wrong_about_all_rows() -> None:
    p = np.repeat(np.array([0.1, 0.9], np.float32), 500)
    assert fit_scale(p, (p < 0.5).astype(np.float32), 0.5).scale == pytest.approx(0.01)


def test_no_other_scale_and_level_are_more_probable() -> None:
    """Newton's full steps oscillated forever if logits were extreme, as for memorized rows."""
    random = np.random.default_rng(4)
    for _ in range(150):
        rows, rate = int(random.choice([2, 30, 300, 3000])), float(random.choice([1e-4, 0.05, 0.3, 0.9]))
        center = np.log(rate / (1 - rate))
        spread = random.normal(0, random.choice([0, 4])) + random.choice([0.1, 1, 10]) * random.normal(
            size=rows
        )
        if random.random() < 0.3:
            spread = np.where(spread > spread.mean(), 15.0, -15.0) - center
        worth = random.choice([-1.0, 0.0, 0.3, 3.0])
        label = (random.random(rows) < sigmoid(center + worth * spread)).astype(np.float32)
        p = sigmoid(center + spread).clip(1e-7, 1 - 1e-7).astype(np.float32)
        x = np.log(p.astype(np.float64) / (1 - p.astype(np.float64))) - center
        few = min(label.sum(), rows - label.sum())
        expected = MAX_SCALE * few / (few + HALF_AT)

        def loss(
            w: F64, x: F64 = x, label: F32 = label, center: float = center, expected: float = expected
        ) -> float:
            logits = center + w[0] * x + w[1]
            prior = SCALE_WEIGHT * (w[0] - expected) ** 2 + SHIFT_WEIGHT * w[1] ** 2
            return float((np.logaddexp(0, logits) - label * logits).sum() + prior / 2)

        found = fit_scale(p, label, rate)
        own = np.array([found.scale, found.shift - center * (1 - found.scale)])
        bounds = [(MIN_SCALE, None), (None, None)]
        other = optimize.minimize(loss, [max(expected, MIN_SCALE), 0.0], bounds=bounds)
        assert loss(own) <= other.fun + 1e-4


def sigmoid(x: F64) -> F64:
    return np.asarray(1 / (1 + np.exp(-x)))


def test_a_calibrated_head_gives_the_scaled_logit() -> None:
    torch.manual_seed(0)
    head = DenseNet(Architecture(width=4, bottom=(), top=(8,)), PerBlock(0, 0), PerBlock(1, 1))
    x = torch.randn(5, 8)
    before = head.output(x)
    LogitScale(1.5, -0.25).apply(head)
    torch.testing.assert_close(head.output(x), 1.5 * before - 0.25)
