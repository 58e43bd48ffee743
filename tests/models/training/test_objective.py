"""Tests polyrec.models.training.objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyrec.models.dlrm.dlrm import Architecture, DenseNet
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.training.objective import LogitScale, fit_scale, listwise_loss


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
    found = fit_scale((1 / (1 + np.exp(-(0.5 * z + 1)))).astype(np.float32), label)
    assert found.scale == pytest.approx(2.0, abs=0.05)
    assert found.shift == pytest.approx(-2.0, abs=0.05)


@pytest.mark.parametrize("label", [np.zeros(4, np.float32), np.array([1, 1, 0, 0], np.float32)])
def test_where_no_calibration_helps_nothing_changes(label: np.ndarray) -> None:
    assert fit_scale(np.array([0.1, 0.2, 0.8, 0.9], np.float32), label) == LogitScale()


def test_a_calibrated_head_gives_the_scaled_logit() -> None:
    torch.manual_seed(0)
    head = DenseNet(Architecture(width=4, bottom=(), top=(8,)), PerBlock(0, 0), PerBlock(1, 1))
    x = torch.randn(5, 8)
    before = head.output(x)
    LogitScale(1.5, -0.25).apply(head)
    torch.testing.assert_close(head.output(x), 1.5 * before - 0.25)
