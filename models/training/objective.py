"""Defines the loss that training minimizes, and the calibration of its logits.

Log-loss treats each row alone. Where a request has one click, its rows compete, and a listwise softmax loss
models that: minus the log of the clicked row's share in the sum of exp(logit) over its request (Cao et al.,
ICML'07). This loss ignores the level of a request's logits, so alone it yields no probabilities. Mixed with
log-loss it does, row by row, and a request may then be cut at serving time. `fit_scale` afterwards corrects
scale and level of the logits on the validation rows (Platt, 1999), as far as their number allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor

from polyrec.models.dlrm.dlrm import DenseNet
from polyrec.models.schema.batch import F32, F64, I64

NEWTON_STEPS = 100
MAX_SCALE, HALF_AT = 0.5, 10.0
"""Weights that are the best of many checks are overconfident, those that few clicks chose most of all."""
SCALE_WEIGHT, SHIFT_WEIGHT = 10.0, 20.0
MIN_SCALE = 0.01
MIN_GAIN = 1e-12
"""Log-likelihood that a step of the fit must promise."""


def listwise_loss(logits: Tensor, label: Tensor, group: I64) -> Tensor:
    """Computes the softmax cross-entropy of each request, summed over requests and heads, per row.

    logits: [heads, rows]. label: [rows]. group: int64 [rows], the request of each row. Several positives of a
    request share its target equally; a request without positives contributes nothing. Dividing by the number
    of rows makes it comparable to their mean log-loss.
    """
    _, inverse = np.unique(group, return_inverse=True)
    request = torch.from_numpy(inverse).to(logits.device)
    zeros = logits.new_zeros(len(logits), int(inverse.max()) + 1)
    highest = zeros.scatter_reduce(1, request.expand_as(logits), logits.detach(), "amax", include_self=False)
    shifted = logits - highest[:, request]
    log_sum = zeros.index_add(1, request, shifted.exp()).log()
    positives = zeros[0].index_add(0, request, label)
    target = label / positives.clamp(min=1)[request]
    return (target * (log_sum[:, request] - shifted)).sum() / label.numel()


@dataclass(frozen=True, slots=True)
class LogitScale:
    """A linear calibration: the calibrated logit is scale * logit + shift."""

    scale: float = 1.0
    shift: float = 0.0

    @torch.no_grad()
    def apply(self, head: DenseNet) -> None:
        """Folds the calibration into a head's output layer."""
        head.output.weight.mul_(self.scale)
        head.output.bias.mul_(self.scale).add_(self.shift)


def unsampling(negatives_kept: float) -> LogitScale:
    """Returns the correction for a model whose training data kept this share of the negatives.

    Such a model overstates the odds by one over that share (He et al., ADKDD'14, section 6.3).
    """
    return LogitScale(shift=log(negatives_kept))


def fit_scale(probabilities: F32, label: F32, base_rate: float, trained_before: bool = False) -> LogitScale:
    """Fits scale and level of the logits, relative to the base rate of the training rows.

    probabilities, label: [rows], of the validation rows. trained_before: the model continues one whose scale
    was right, so a scale of 1 is expected.

    This is a maximum a posteriori fit under a normal prior (SCALE_WEIGHT, SHIFT_WEIGHT). The prior expects no
    shift, and a smaller scale the fewer clicks selected the weights: MAX_SCALE n / (n + HALF_AT) for n
    clicks. Thousands of clicks outweigh the prior; with a dozen, the maximum likelihood scale may be far
    above 1. The scale is at least MIN_SCALE, which preserves the ranking.
    """
    clicks = float(label.sum())
    clicks = min(clicks, label.size - clicks)
    expected = 1.0 if trained_before else MAX_SCALE * clicks / (clicks + HALF_AT)
    center = log_odds(base_rate)
    p = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
    spread = np.log(p / (1 - p)) - center
    x = np.column_stack((spread, np.ones(p.size)))
    prior, weight = np.array([expected, 0.0]), np.array([SCALE_WEIGHT, SHIFT_WEIGHT])
    scale, shift = _most_probable(x, np.full(p.size, center), label, prior, weight)
    if scale < MIN_SCALE:
        scale = MIN_SCALE
        (shift,) = _most_probable(x[:, 1:], center + scale * spread, label, prior[1:], weight[1:])
    return LogitScale(float(scale), float(center * (1 - scale) + shift))


def _most_probable(x: F64, offset: F64, label: F32, prior: F64, weight: F64) -> F64:
    """Fits a logistic regression under a normal prior with Newton's method; returns its weights [columns of
    x].

    x: [rows, columns]. offset: [rows], added to the logits. weight: inverse variances of the prior.
    """

    def loss(weights: F64) -> float:
        logits = offset + x @ weights
        given = np.logaddexp(0, logits) - label * logits
        return float(given.sum() + (weight * (weights - prior) ** 2).sum() / 2)

    found, min_loss = prior.copy(), loss(prior)
    for _ in range(NEWTON_STEPS):
        q = (1 + np.tanh((offset + x @ found) / 2)) / 2
        gradient = x.T @ (q - label) + weight * (found - prior)
        step = np.linalg.solve((x * (q * (1 - q))[:, None]).T @ x + np.diag(weight), gradient)
        gain = float(gradient @ step)
        if gain < MIN_GAIN:
            break
        # a full step overshoots where the sigmoid is flat, possibly forever, so halve it until the loss falls
        while (then := loss(found - step)) > min_loss - gain / 10 and gain > MIN_GAIN:
            step, gain = step / 2, gain / 2
        if then >= min_loss:
            break
        found, min_loss = found - step, then
    return found


def log_odds(base_rate: float) -> float:
    """Returns the logit of a base rate; finite even if all rows are of one class."""
    p = min(max(base_rate, 1e-6), 1 - 1e-6)
    return log(p / (1 - p))
