"""Trains a model on encoded data and keeps the weights with the best validation log-loss.

Rows are shuffled each epoch from a seed. Click models overfit within an epoch or two, so validation is
measured several times per epoch and the best weights are kept. Validation rows are the end of the training
time (or a hashed share), never test rows. `refit` then trains again on training and validation rows together,
for the number of steps that was best.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.dlrm.linear_start import start_linear
from polyrec.models.evaluation.metrics import auc, log_loss
from polyrec.models.schema.batch import F32, I64
from polyrec.models.training.checkpoint import Checkpoints, State
from polyrec.models.training.id_dropout import IdDropout
from polyrec.models.training.objective import log_odds
from polyrec.models.training.recipe import Recipe
from polyrec.models.training.source import Rows, RowSource, TrainingRows
from polyrec.models.training.stepper import Stepper
from polyrec.models.training.tiers.stage import ResidentStage
from polyrec.models.training.workers.workers import Workers

FIT, REFIT = "fit", "refit"
"""Names of the runs of a training: on training rows, and again with the validation rows."""


@dataclass(frozen=True, slots=True)
class Check:
    """One measurement on the validation rows.

    training_loss: mean since the previous check; NaN before the first step.
    log_loss: selects the weights; the mean over the heads of nested widths. auc: of the widest head.
    """

    step: int
    epoch: float
    training_loss: float
    log_loss: float
    auc: float


@dataclass(frozen=True, slots=True)
class History:
    """All checks, and the step whose weights were kept.

    linear_start: whether the net began nearly linear (models/dlrm/linear_start.py).
    """

    checks: tuple[Check, ...]
    best_step: int
    steps_per_epoch: int
    linear_start: bool


@dataclass(frozen=True, slots=True)
class StepReport:
    """A completed step of a training, one of `total`.

    rows: rows in its batch. check: the last one, if any. learning_rate: of the net. run: FIT or REFIT.
    """

    step: int
    total: int
    rows: int
    loss: float
    check: Check | None = None
    learning_rate: float = 0.0
    run: str = FIT


Progress = Callable[[StepReport], None]
"""Called after each step."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How a training runs, besides its recipe.

    checkpoints: written while training; if they contain one of this training, it resumes. Not with workers.
    workers: see Stepper.
    trained_before: the model is continued as it is, rather than from initial weights.
    """

    progress: Progress | None = None
    checkpoints: Checkpoints | None = None
    workers: Workers | None = None
    trained_before: bool = False


class _Selection:
    """The checks of a training, and the weights of the best one."""

    def __init__(
        self, model: DLRM, validation: Rows, steps_per_epoch: int, workers: Workers | None = None
    ) -> None:
        self.checks: list[Check] = []
        self.losses: list[float] = []
        self.ended = False
        self._model, self._validation, self._steps_per_epoch = model, validation, steps_per_epoch
        self._workers = workers
        self._best: dict[str, Tensor] = {}
        self._resident = model.stage.resident if isinstance(model.stage, ResidentStage) else None
        self.best_rows = 0

    @property
    def best_step(self) -> int:
        return min(self.checks, key=lambda c: c.log_loss).step

    def check(self, step: int) -> None:
        """Measures the model and keeps its weights if they are the best so far."""
        validation, label = self._validation, self._validation.label
        if self._workers:
            own = predict_heads(self._model, validation.data, self._workers.checked_rows(validation.rows))
            heads = self._workers.gathered(own, validation.size)
        else:
            heads = predict_heads(self._model, validation.data, validation.rows)
        loss = float(np.mean([log_loss(p, label) for p in heads]))
        training_loss = float(np.mean(self.losses)) if self.losses else math.nan
        epoch = step / self._steps_per_epoch
        self.checks.append(Check(step, epoch, training_loss, loss, auc(heads[-1], label)))
        self.losses = []
        if self._workers:
            self._workers.checked(loss)
        if self.best_step == step:
            self._best = copy.deepcopy(self._model.state_dict())
            if self._resident:
                self.best_rows = self._resident.snapshot()

    def history(self, linear_start: bool) -> History:
        """Restores the model's best weights and returns the history. linear_start: see History."""
        self._model.load_state_dict(self._best)
        if self._resident:
            self._resident.roll_back(self.best_rows)
        return History(tuple(self.checks), self.best_step, self._steps_per_epoch, linear_start)

    def state(self) -> State:
        """Returns the part of a checkpoint that is saved with the stepper's state."""
        checks = [asdict(check) for check in self.checks]
        values = {"checks": checks, "losses": self.losses, "ended": self.ended}
        values["best_rows"] = self.best_rows
        return State({f"best.{name}": t for name, t in self._best.items()}, values)

    def restore(self, state: State) -> None:
        self._best = state.under("best")
        self.checks = [Check(**check) for check in state.values["checks"]]
        self.losses, self.ended = state.values["losses"], state.values["ended"]
        self.best_rows = state.values["best_rows"]


def fit(
    model: DLRM,
    training: RowSource,
    validation: Rows,
    recipe: Recipe,
    hide: IdDropout | None = None,
    options: FitOptions = FitOptions(),
) -> History:
    """Trains `model` in place and leaves it at its best weights by validation log-loss.

    Stops early after `patience` checks without improvement. The present weights of a model that was trained
    before may turn out to be the best.
    """
    checkpoints, workers, trained_before = options.checkpoints, options.workers, options.trained_before
    linear_start = not trained_before and recipe.starts_linear(training.size)
    if not trained_before:
        _start(model, training, linear_start)
    steps_per_epoch = recipe.steps_per_epoch(training.size)
    total = steps_per_epoch * recipe.epochs
    every = max(1, steps_per_epoch // recipe.checks_per_epoch)
    stepper = Stepper(model, training, recipe, total, hide, workers)
    selection = _Selection(model, validation, steps_per_epoch, workers)
    if checkpoints and (found := checkpoints.load(FIT)):
        stepper.restore(found)
        selection.restore(found)
    elif trained_before:
        selection.check(0)
    for taken in () if selection.ended else stepper:
        step = taken.number
        selection.losses.append(taken.loss)
        if step % every == 0 or step == total:
            stepper.average.swap()
            selection.check(step)
            stepper.average.swap()
            if not checkpoints:
                stepper.drop_before(selection.best_rows)
            selection.ended = step == total or step - selection.best_step >= recipe.patience * every
        if options.progress:
            last = selection.checks[-1] if selection.checks else None
            options.progress(StepReport(step, total, taken.rows, taken.loss, last, taken.learning_rate))
        if checkpoints and (selection.ended or checkpoints.due()):
            saved = stepper.take_snapshot()
            checkpoints.save(FIT, stepper.state() | selection.state())
            stepper.drop_before(min(saved, selection.best_rows))
        if selection.ended:
            break
    return selection.history(linear_start)


def refit(
    model: DLRM,
    rows: RowSource,
    recipe: Recipe,
    history: History,
    hide: IdDropout | None = None,
    options: FitOptions = FitOptions(),
) -> None:
    """Trains a fresh `model` on all `rows` for the number of epochs that was best in `history`.

    Uses the validated schedule, stopped at the same share of its length, and the validated start, even if
    adding the validation rows crosses one of its limits.
    """
    if not options.trained_before:
        _start(model, rows, history.linear_start)
    stop = round(history.best_step / history.steps_per_epoch * recipe.steps_per_epoch(rows.size))
    _train(model, rows, recipe, stop, hide, options)


def fine_tune(
    model: DLRM,
    rows: RowSource,
    recipe: Recipe,
    hide: IdDropout | None = None,
    progress: Progress | None = None,
) -> None:
    """Trains `model` further: one epoch of `rows` at a fifth of the recipe's step sizes.

    Embedding rows stay fixed, because another epoch would overfit them (docs/quality.md).
    """
    fixed_rows = {"sparse_lr": 0.0, "block_lr": ()}
    gentle = recipe.model_copy(update={"epochs": 1, "dense_lr": recipe.dense_lr / 5, **fixed_rows})
    _train(model, rows, gentle, recipe.steps_per_epoch(rows.size), hide, FitOptions(progress))


def _train(
    model: DLRM,
    rows: RowSource,
    recipe: Recipe,
    stop: int,
    hide: IdDropout | None,
    options: FitOptions,
) -> None:
    """Takes the first `stop` steps of the recipe's schedule and sets the model to the weight average."""
    checkpoints, workers = options.checkpoints, options.workers
    stepper = Stepper(model, rows, recipe, recipe.steps_per_epoch(rows.size) * recipe.epochs, hide, workers)
    if checkpoints and (found := checkpoints.load(REFIT)):
        stepper.restore(found)
    for taken in stepper if stepper.step < stop else ():
        if options.progress:
            rate = taken.learning_rate
            options.progress(StepReport(taken.number, stop, taken.rows, taken.loss, None, rate, REFIT))
        if checkpoints and checkpoints.due():
            saved = stepper.take_snapshot()
            checkpoints.save(REFIT, stepper.state())
            stepper.drop_before(saved)
        if taken.number >= stop:
            break
    stepper.average.swap()
    if workers:
        workers.settle()


def _start(model: DLRM, rows: RowSource, linear: bool) -> None:
    """Sets what an untrained model starts with besides its random weights."""
    start_at_base_rate(model, rows.base_rate)
    if linear:
        for head in model.net.heads:
            start_linear(head)


def start_at_base_rate(model: DLRM, base_rate: float) -> None:
    """Sets the output biases to the log-odds of a click, so that no steps are spent on learning them."""
    with torch.no_grad():
        for head in model.net.heads:
            head.output.bias.fill_(log_odds(base_rate))


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
