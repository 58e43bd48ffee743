"""Trains a model on encoded data and keeps the weights of the best validation log-loss.

Rows are shuffled each epoch from a seed. Click models overfit within an epoch or two, so validation
is measured several times per epoch and the best weights are kept. The validation rows are the end of
the training time (or a hashed share), never the test rows; `refit` then trains again on training and
validation rows together for the number of steps that was best.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.embeddings.decoder import running_statistics
from polyrec.models.errors import DataError
from polyrec.models.evaluation.metrics import auc, log_loss
from polyrec.models.files import Strict
from polyrec.models.schema.batch import F32, I64, Batch
from polyrec.models.training.id_dropout import IdDropout
from polyrec.models.training.objective import listwise_loss
from polyrec.models.training.optimizer import ColumnBlock, RowWiseAdagrad
from polyrec.models.training.row_order import epoch


class TrainingRows(Protocol):
    """Encoded data, like models/data/encoded.py's EncodedRows."""

    label: F32
    group: I64 | None

    def batch(self, rows: I64) -> Batch: ...


MOST_BATCH_ROWS, LEAST_BATCH_ROWS = 512, 64
LEAST_STEPS = 100


class Recipe(Strict):
    """Hyperparameters of training. The defaults are best on average over the public data at hand
    (docs/results/recipes.md).

    batch_rows: rows of a step; None: MOST_BATCH_ROWS, or as many less, down to LEAST_BATCH_ROWS, as give
    LEAST_STEPS an epoch. by_request: batches are whole requests, see models/training/row_order.py; None: if
    the schema has a group. dense_lr: Adam's step size; sparse_lr: row-wise Adagrad's.
    warm_up: share of all steps in which both rise from zero; then they fall linearly to `final_lr` of their
    maximum. row_decay, dense_decay: decoupled weight decay (of touched rows; of the MLPs). row_spread: see
    TableStage.initial.
    hide: id dropout, see models/training/id_dropout.py; `unseen` measures its rates on the validation rows
    (models/training/unseen.py), a number holds for every vocabulary of at least `hide_from_rows` rows. An id
    dropped in a shared context is dropped for all its rows. average: see WeightAverage.
    listwise: weight of the listwise softmax loss against log-loss (needs by_request); calibrate: scale and
    level of the logits are fitted on the validation rows; see models/training/objective.py.
    block_lr: with nested widths, factor of `sparse_lr` for the columns that each width adds; empty: 1.
    distill: with nested widths, the narrow heads' share of the target that is the widest head's probability.
    """

    epochs: Annotated[int, Field(ge=1)] = 3
    batch_rows: Annotated[int, Field(ge=1)] | None = None
    by_request: bool | None = None
    listwise: Annotated[float, Field(ge=0, le=1)] = 0.0
    calibrate: bool = True
    dense_lr: Annotated[float, Field(gt=0)] = 1e-3
    sparse_lr: Annotated[float, Field(ge=0)] = 0.2
    block_lr: tuple[Annotated[float, Field(gt=0)], ...] = ()
    distill: Annotated[float, Field(ge=0, le=1)] = 0.5
    final_lr: Annotated[float, Field(ge=0, le=1)] = 0.5
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.1
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    row_decay: Annotated[float, Field(ge=0)] = 0.0
    dense_decay: Annotated[float, Field(ge=0)] = 0.0
    row_spread: Annotated[float, Field(gt=0)] | None = None
    hide: Annotated[float, Field(ge=0, lt=1)] | Literal["unseen"] = "unseen"
    hide_from_rows: Annotated[int, Field(ge=1)] = 1000
    average: Annotated[float, Field(ge=0, lt=1)] = 0.99
    checks_per_epoch: Annotated[int, Field(ge=1)] = 8
    patience: Annotated[int, Field(ge=1)] = 8
    refit: bool = False
    seed: int = 0

    def rows_of_step(self, rows: int) -> int:
        """The rows of a step, for a number of training rows."""
        if self.batch_rows is not None:
            return self.batch_rows
        return min(MOST_BATCH_ROWS, max(LEAST_BATCH_ROWS, rows // LEAST_STEPS))

    def steps_per_epoch(self, rows: int) -> int:
        """The steps that take every one of a number of training rows once."""
        return -(-rows // self.rows_of_step(rows))


@dataclass(frozen=True, slots=True)
class Check:
    """One measurement on the validation rows.

    log_loss: what selects the weights; the mean over the heads of nested widths. auc: of the widest head.
    """

    step: int
    epoch: float
    training_loss: float
    log_loss: float
    auc: float


@dataclass(frozen=True, slots=True)
class History:
    """All checks, and the step whose weights were kept."""

    checks: tuple[Check, ...]
    best_step: int
    steps_per_epoch: int


def dense_parameters(model: DLRM) -> list[Parameter]:
    """Returns all weights but the rows: those that every step updates."""
    return [*model.net.parameters(), *model.stage.dense_parameters()]


class WeightAverage:
    """An exponential moving average of the dense weights, which predicts better than the last step's.

    rate: weight of the old average at each step; it rises from 0.1 to this value, so that the first steps are
    forgotten. The statistics of batch norms are averaged like the weights that they belong to. Embedding rows
    are not averaged: that gained nothing and would touch every row.
    """

    def __init__(self, model: DLRM, rate: float) -> None:
        self._rate = rate
        self._weights = [*dense_parameters(model), *running_statistics(model)]
        self._mean = [w.detach().clone() for w in self._weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Adds the weights after optimizer step `step`."""
        rate = min(self._rate, (1 + step) / (10 + step))
        for mean, weight in zip(self._mean, self._weights, strict=True):
            mean.lerp_(weight, 1 - rate)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges the model's weights and the average."""
        for mean, weight in zip(self._mean, self._weights, strict=True):
            kept = weight.clone()
            weight.copy_(mean)
            mean.copy_(kept)


Progress = Callable[[int, int, float, Check | None], None]
"""Called after each step with (step, total steps, training loss, last check)."""


def fit(
    model: DLRM,
    data: TrainingRows,
    training: I64,
    validation: I64,
    recipe: Recipe,
    hide: IdDropout | None = None,
    progress: Progress | None = None,
) -> History:
    """Trains `model` in place and leaves it at its best weights by validation log-loss.

    training, validation: int64 row indices into `data`. Stops early after `patience` checks without
    improvement.
    """
    start_at_base_rate(model, data.label[training])
    steps_per_epoch = recipe.steps_per_epoch(training.size)
    total = steps_per_epoch * recipe.epochs
    every = max(1, steps_per_epoch // recipe.checks_per_epoch)
    checks: list[Check] = []
    best: tuple[float, int, dict[str, Tensor]] | None = None
    losses: list[float] = []
    average = WeightAverage(model, recipe.average)
    for step, loss in steps(model, data, training, recipe, total, hide):
        losses.append(loss)
        average.update(step)
        if step % every == 0 or step == total:
            average.swap()
            heads = predict_heads(model, data, validation)
            y = data.label[validation]
            loss_now = float(np.mean([log_loss(p, y) for p in heads]))
            check = Check(step, step / steps_per_epoch, float(np.mean(losses)), loss_now, auc(heads[-1], y))
            checks.append(check)
            losses = []
            if best is None or check.log_loss < best[0]:
                best = (check.log_loss, step, copy.deepcopy(model.state_dict()))
            average.swap()
            if step - best[1] >= recipe.patience * every:
                break
        if progress:
            progress(step, total, loss, checks[-1] if checks else None)
    assert best is not None
    model.load_state_dict(best[2])
    return History(tuple(checks), best[1], steps_per_epoch)


def refit(
    model: DLRM,
    data: TrainingRows,
    rows: I64,
    recipe: Recipe,
    history: History,
    hide: IdDropout | None = None,
    progress: Progress | None = None,
) -> None:
    """Trains a fresh `model` on all `rows` for as many epochs as were best in `history`.

    Uses the validated schedule, stopped at the same share of its length.
    """
    start_at_base_rate(model, data.label[rows])
    steps_per_epoch = recipe.steps_per_epoch(rows.size)
    stop = round(history.best_step / history.steps_per_epoch * steps_per_epoch)
    _train(model, data, rows, recipe, stop, hide, progress)


def fine_tune(
    model: DLRM,
    data: TrainingRows,
    rows: I64,
    recipe: Recipe,
    hide: IdDropout | None = None,
    progress: Progress | None = None,
) -> None:
    """Trains `model` further: one epoch of `rows` at a fifth of the recipe's step sizes.

    Embedding rows stay fixed: another epoch would overfit them (docs/quality.md).
    """
    fixed_rows = {"sparse_lr": 0.0, "block_lr": ()}
    gentle = recipe.model_copy(update={"epochs": 1, "dense_lr": recipe.dense_lr / 5, **fixed_rows})
    _train(model, data, rows, gentle, recipe.steps_per_epoch(rows.size), hide, progress)


def _train(
    model: DLRM,
    data: TrainingRows,
    rows: I64,
    recipe: Recipe,
    stop: int,
    hide: IdDropout | None,
    progress: Progress | None,
) -> None:
    """Takes the first `stop` steps of the recipe's schedule and sets the model to the weight average."""
    total = recipe.steps_per_epoch(rows.size) * recipe.epochs
    average = WeightAverage(model, recipe.average)
    for step, loss in steps(model, data, rows, recipe, total, hide):
        average.update(step)
        if progress:
            progress(step, stop, loss, None)
        if step >= stop:
            break
    average.swap()


def start_at_base_rate(model: DLRM, label: F32) -> None:
    """Sets the outputs' biases to the log-odds of the labels, so that no step is spent on learning them."""
    base = float(np.clip(label.mean(), 1e-6, 1 - 1e-6))
    with torch.no_grad():
        for head in model.net.heads:
            head.output.bias.fill_(np.log(base / (1 - base)))


def column_blocks(model: DLRM, recipe: Recipe) -> list[ColumnBlock]:
    """The blocks of the rows' optimizer. Raises DataError if `block_lr` does not fit the widths."""
    blocks = model.net.shape.blocks
    factors = recipe.block_lr or (1.0,) * len(blocks)
    if len(factors) != len(blocks):
        raise DataError(f"block_lr: {len(factors)} step sizes, but the model has {len(blocks)} widths")
    return [ColumnBlock(*block, lr) for block, lr in zip(blocks, factors, strict=True)]


def loss_of_heads(logits: Tensor, label: Tensor, distill: float) -> Tensor:
    """Sums the binary cross-entropies of all heads.

    logits: [heads, rows], the widest last; label: [rows]. The target of the narrow heads is a mixture of the
    label and the widest head's probability, of which the latter has weight `distill`.
    """
    soft = label.lerp(logits[-1].detach().sigmoid(), distill)
    target = torch.cat((soft.expand(len(logits) - 1, -1), label.unsqueeze(0)))
    return F.binary_cross_entropy_with_logits(logits, target, reduction="sum") / label.numel()


def steps(
    model: DLRM, data: TrainingRows, rows: I64, recipe: Recipe, total: int, hide: IdDropout | None = None
) -> Iterator[tuple[int, float]]:
    """Takes up to `total` optimizer steps, yielding (step, loss) after each."""
    torch.manual_seed(recipe.seed)
    dense = torch.optim.AdamW(dense_parameters(model), lr=recipe.dense_lr, weight_decay=recipe.dense_decay)
    rows_of_stage, blocks = model.stage.sparse_parameters(), column_blocks(model, recipe)
    sparse = RowWiseAdagrad(rows_of_stage, recipe.sparse_lr, decay=recipe.row_decay, blocks=blocks)
    warm = max(1, int(total * recipe.warm_up))
    random = np.random.default_rng(recipe.seed)
    if recipe.by_request and data.group is None:
        raise DataError("by_request: the schema has no group that would tell requests apart")
    group = None if recipe.by_request is False else data.group
    if recipe.listwise and group is None:
        raise DataError("listwise: a loss over requests needs batches of whole requests (by_request: true)")
    step = 0
    while step < total:
        for chosen in epoch(rows, group, recipe.rows_of_step(rows.size), random):
            model.train()
            label = torch.from_numpy(data.label[chosen])
            batch = data.batch(chosen)
            logits = model.logits(hide(batch, random) if hide else batch)
            label = label.to(logits.device)
            loss = loss_of_heads(logits, label, recipe.distill)
            if group is not None and recipe.listwise:
                whole = listwise_loss(logits, label, group[chosen])
                loss = (1 - recipe.listwise) * loss + recipe.listwise * whole
            dense.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            fall = recipe.final_lr + (1 - recipe.final_lr) * (1 - step / total)
            scale = min((step + 1) / warm, fall)
            dense.param_groups[0]["lr"] = recipe.dense_lr * scale
            dense.step()
            sparse.step(scale)
            step += 1
            yield step, loss.item()
            if step >= total:
                return


def predict(model: DLRM, data: TrainingRows, rows: I64, batch_rows: int = 8192) -> F32:
    """Returns click probabilities of the widest head, float32 [rows.size], in the order of `rows`."""
    out: F32 = predict_heads(model, data, rows, batch_rows)[-1]
    return out


def predict_heads(model: DLRM, data: TrainingRows, rows: I64, batch_rows: int = 8192) -> F32:
    """Returns click probabilities of every head, float32 [heads, rows.size]."""
    model.eval()
    out = np.empty((len(model.net.heads), rows.size), np.float32)
    with torch.inference_mode():
        for start in range(0, rows.size, batch_rows):
            chosen = rows[start : start + batch_rows]
            out[:, start : start + chosen.size] = model.logits(data.batch(chosen)).sigmoid().cpu().numpy()
    return out
