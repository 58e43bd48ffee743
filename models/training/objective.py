"""The loss that training minimizes, and the calibration of its logits.

Log-loss treats rows alone. Where one request has one click, its rows compete, and a listwise softmax loss
says so: minus the log of the share of the clicked row in the sum of exp(logit) over its request (Cao et al.,
ICML'07). It does not see the level of a request's logits, so alone it gives no probabilities; mixed with
log-loss it does, row by row, and a request may be cut at serving time. `fit_scale` then corrects scale and
level of the logits on the validation rows (Platt, 1999).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor

from polyrec.models.dlrm.dlrm import DenseNet
from polyrec.models.schema.batch import F32, I64

NEWTON_STEPS = 50


def listwise_loss(logits: Tensor, label: Tensor, group: I64) -> Tensor:
    """Softmax cross-entropy of each request, summed over requests and heads, over the number of rows.

    logits: [heads, rows], label: [rows]. group: int64 [rows], the request of each. Several positives of a
    request share its target equally; a request without one counts nothing. Divided by the rows, it is of
    the size of their mean log-loss.
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
    """A calibrated logit is scale * logit + shift."""

    scale: float = 1.0
    shift: float = 0.0

    @torch.no_grad()
    def apply(self, head: DenseNet) -> None:
        """Folds the calibration into the output layer of a head."""
        head.output.weight.mul_(self.scale)
        head.output.bias.mul_(self.scale).add_(self.shift)


def unsampling(negatives_kept: float) -> LogitScale:
    """Returns the correction of a model whose training data kept this share of the negatives.

    Such a model overstates the odds by one over that share (He et al., ADKDD'14, section 6.3).
    """
    return LogitScale(shift=log(negatives_kept))


def fit_scale(probabilities: F32, label: F32) -> LogitScale:
    """Fits scale and shift by maximum likelihood, with Newton's method.

    probabilities, label: [rows]. Without both classes, or if the best scale is not positive, nothing changes.
    """
    p = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
    x = np.column_stack((np.log(p / (1 - p)), np.ones(p.size)))
    weights = np.array([1.0, 0.0])
    for _ in range(NEWTON_STEPS):
        q = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        hessian = (x * (q * (1 - q))[:, None]).T @ x + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, x.T @ (q - label))
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    if not np.isfinite(weights).all() or weights[0] <= 0 or not 0 < label.mean() < 1:
        return LogitScale()
    return LogitScale(float(weights[0]), float(weights[1]))
