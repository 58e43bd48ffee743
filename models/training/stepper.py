"""Takes optimizer steps, with a state that can be saved after any step and resumed exactly."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.embeddings.decoder import running_statistics
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import I64, Batch
from polyrec.models.training.checkpoint import State
from polyrec.models.training.id_dropout import IdDropout
from polyrec.models.training.objective import listwise_loss
from polyrec.models.training.optimizer import ColumnBlock, RowWiseAdagrad
from polyrec.models.training.recipe import Recipe
from polyrec.models.training.row_order import epoch
from polyrec.models.training.source import Rows, RowSource
from polyrec.models.training.stream import ahead
from polyrec.models.training.tiers.stage import PreparedBatch, ResidentStage
from polyrec.models.training.workers.workers import Workers

PREPARED = 3
"""Batches whose rows are brought into memory ahead of the step that is taken."""


def dense_parameters(model: DLRM) -> list[Parameter]:
    """Returns all weights except the rows; every step updates them."""
    return [*model.net.parameters(), *model.stage.dense_parameters()]


class WeightAverage:
    """An exponential moving average of the dense weights, which predicts better than the last step's weights.

    rate: weight of the old average at each step. It rises from 0.1 to this value, so that the first steps are
    forgotten.
    mean: the average, unless it is swapped in. The statistics of batch norms are averaged along with their
    weights. Embedding rows are not averaged: that gained nothing and would touch every row.
    """

    def __init__(self, model: DLRM, rate: float) -> None:
        self._rate = rate
        self._weights = [*dense_parameters(model), *running_statistics(model)]
        self.mean = [w.detach().clone() for w in self._weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Includes the weights after optimizer step `step`."""
        rate = min(self._rate, (1 + step) / (10 + step))
        for mean, weight in zip(self.mean, self._weights, strict=True):
            mean.lerp_(weight, 1 - rate)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges the model's weights and the average."""
        for mean, weight in zip(self.mean, self._weights, strict=True):
            kept = weight.clone()
            weight.copy_(mean)
            mean.copy_(kept)


def column_blocks(model: DLRM, recipe: Recipe) -> list[ColumnBlock]:
    """Returns the column blocks for the rows' optimizer. Raises DataError if `block_lr` does not fit the
    widths.
    """
    blocks = model.net.shape.blocks
    factors = recipe.block_lr or (1.0,) * len(blocks)
    if len(factors) != len(blocks):
        raise DataError(f"block_lr: {len(factors)} step sizes, but the model has {len(blocks)} widths")
    return [ColumnBlock(*block, lr) for block, lr in zip(blocks, factors, strict=True)]


def loss_of_heads(logits: Tensor, label: Tensor, distill: float) -> Tensor:
    """Sums the binary cross-entropies of all heads.

    logits: [heads, rows], the widest head last. label: [rows]. distill: weight of the widest head's
    probability in the targets of the narrow heads; the rest is the label.
    """
    soft = label.lerp(logits[-1].detach().sigmoid(), distill)
    target = torch.cat((soft.expand(len(logits) - 1, -1), label.unsqueeze(0)))
    return F.binary_cross_entropy_with_logits(logits, target, reduction="sum") / label.numel()


@dataclass(frozen=True, slots=True)
class Step:
    """A completed step. number: from 1. rows: rows in its batch. learning_rate: of the net."""

    number: int
    loss: float
    rows: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a step in the data.

    window: number of the window. drawn: batches drawn from it so far. began: random state at the beginning of
    the window, to draw its order again. random: state after the step's batch; empty before the first.
    """

    window: int
    drawn: int
    began: Mapping[str, Any]
    random: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step.

    batch: the batch of these rows, with ids hidden; None if workers draw their own.
    prepared: the batch with its rows in memory; None for a model whose rows are all in memory.
    """

    window: Rows
    rows: I64
    batch: Batch | None
    at: Position
    prepared: PreparedBatch | None = None


class Stepper:
    """Iterates over up to `total` optimizer steps on the windows of `source`, epoch after epoch.

    average: average of the dense weights, updated after every step.
    workers: share the rows of every step; the model is then sharded (models/training/workers), and every
    worker iterates.
    """

    def __init__(
        self,
        model: DLRM,
        source: RowSource,
        recipe: Recipe,
        total: int,
        hide: IdDropout | None = None,
        workers: Workers | None = None,
    ) -> None:
        torch.manual_seed(recipe.seed + (workers.rank if workers else 0))
        self.step, self.total = 0, total
        self.average = WeightAverage(model, recipe.average)
        self._model, self._source, self._recipe, self._hide = model, source, recipe, hide
        self._device = next(model.net.parameters()).device
        self._batch_rows = recipe.rows_of_step(source.size)
        self._dense = torch.optim.AdamW(
            dense_parameters(model), lr=recipe.dense_lr, weight_decay=recipe.dense_decay
        )
        rows, blocks = model.stage.sparse_parameters(), column_blocks(model, recipe)
        self._sparse = RowWiseAdagrad(rows, recipe.sparse_lr, decay=recipe.row_decay, blocks=blocks)
        self._random = np.random.default_rng(recipe.seed)
        # workers draw the same order, but hide ids independently in their own rows
        self._hiding = np.random.default_rng((recipe.seed, workers.rank)) if workers else self._random
        self._workers = workers
        if workers:
            workers.begin(model, self._sparse)
        self._at = Position(0, 0, self._random.bit_generator.state, {})
        self._resident = model.stage if isinstance(model.stage, ResidentStage) else None
        self._snapshot = 0
        if self._resident:
            self._resident.resident.begin(self._sparse.accumulators())

    def __iter__(self) -> Iterator[Step]:
        draws = self._draws()
        if self._resident:
            # one thread draws batches, another brings their rows into memory
            draws = ahead(self._prepared(ahead(draws), self._resident), PREPARED)
        try:
            for drawn in draws:
                loss = self._take(drawn)
                yield Step(self.step, loss, drawn.rows.size, self._dense.param_groups[0]["lr"])
        finally:
            if self._resident:
                self._resident.resident.release()
            draws.close()

    def _draws(self) -> Generator[StepRows]:
        """Yields the batches of the remaining steps."""
        left, number, drawn = self.total - self.step, self._at.window, self._at.drawn
        resume_at = self._at if self._at.random else None
        while left > 0:
            before = left
            for window in self._source.windows(number):
                if resume_at is not None:
                    self._random.bit_generator.state = resume_at.began
                began = self._random.bit_generator.state
                order = self._order(window)
                for _ in range(drawn):
                    next(order)
                if resume_at is not None:
                    self._random.bit_generator.state, resume_at = resume_at.random, None
                for chosen in order:
                    drawn, left = drawn + 1, left - 1
                    batch = None if self._workers else self._draw(window, chosen)
                    at = Position(number, drawn, began, self._random.bit_generator.state)
                    yield StepRows(window, chosen, batch, at)
                    if not left:
                        return
                number, drawn = number + 1, 0
            if left == before and not number:
                raise DataError("there are no rows to train on")
            number = 0

    def _prepared(self, draws: Iterator[StepRows], stage: ResidentStage) -> Generator[StepRows]:
        """Yields the batches after their rows have been brought into memory."""
        for drawn in draws:
            assert drawn.batch is not None
            yield replace(drawn, prepared=stage.prepare(drawn.batch))

    def _order(self, window: Rows) -> Iterator[I64]:
        """Yields the row numbers of each batch of a window."""
        if self._workers:
            return self._workers.epoch(window, self._group(window), self._batch_rows, self._random)
        return epoch(window.rows, self._group(window), self._batch_rows, self._random)

    def _group(self, window: Rows) -> I64 | None:
        """Returns the request of each row if batches consist of whole requests. Raises DataError."""
        recipe, group = self._recipe, window.data.group
        if recipe.by_request and group is None:
            raise DataError("by_request: the schema has no group that would tell requests apart")
        if recipe.by_request is False:
            group = None
        if recipe.listwise and group is None:
            raise DataError(
                "listwise: a loss over requests needs whole requests in a batch (by_request: true)"
            )
        return group

    def _take(self, drawn: StepRows) -> float:
        recipe, window, chosen = self._recipe, drawn.window, drawn.rows
        self._model.train()
        self._dense.zero_grad(set_to_none=True)
        if self._workers:
            draw, loss_of = partial(self._draw, window), partial(self._loss, window)
            loss = self._workers.backward(chosen, self._group(window), draw, loss_of)
        else:
            assert drawn.batch is not None
            if self._resident:
                self._resident.ahead = drawn.prepared
            whole = self._loss(window, drawn.batch, chosen)
            whole.backward()  # type: ignore[no-untyped-call]
            loss = whole.item()
        fall = recipe.final_lr + (1 - recipe.final_lr) * (1 - self.step / self.total)
        scale = min((self.step + 1) / max(1, int(self.total * recipe.warm_up)), fall)
        self._dense.param_groups[0]["lr"] = recipe.dense_lr * scale
        self._dense.step()
        self._sparse.step(scale)
        if self._resident and drawn.prepared:
            self._resident.resident.done(drawn.prepared.rows)
        self.step, self._at = self.step + 1, drawn.at
        self.average.update(self.step)
        return loss

    def _draw(self, window: Rows, chosen: I64) -> Batch:
        """Returns the batch of the given rows, with ids hidden."""
        batch = window.data.batch(chosen)
        return self._hide(batch, self._hiding) if self._hide else batch

    def _loss(self, window: Rows, batch: Batch, chosen: I64) -> Tensor:
        """Returns the mean loss of the batch of rows `chosen`."""
        recipe, group = self._recipe, self._group(window)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            logits = self._model.logits(batch)
        logits = logits.float() if recipe.precision == "bf16" else logits
        label = torch.from_numpy(window.data.label[chosen]).to(logits.device)
        loss = loss_of_heads(logits, label, recipe.distill)
        if group is not None and recipe.listwise:
            whole = listwise_loss(logits, label, group[chosen])
            loss = (1 - recipe.listwise) * loss + recipe.listwise * whole
        return loss

    def take_snapshot(self) -> int:
        """Takes a snapshot of rows in a file, for `state`; returns its number, or 0 without a file."""
        self._snapshot = self._resident.resident.snapshot() if self._resident else 0
        return self._snapshot

    def drop_before(self, snapshot: int) -> None:
        """Removes the logs that only snapshots before this one need."""
        if self._resident:
            self._resident.resident.log.drop_before(snapshot)

    def state(self) -> State:
        """Returns everything that later steps depend on, without copies; write it before the next step.

        For rows in a file, it contains the number of the last snapshot.
        """
        tensors = {f"model.{name}": t for name, t in self._model.state_dict().items()}
        for index, entries in self._dense.state_dict()["state"].items():
            tensors |= {f"dense.{index}.{key}": value for key, value in entries.items()}
        if not self._resident:
            tensors |= {f"sparse.{i}": t for i, t in enumerate(self._sparse.accumulators())}
        tensors |= {f"average.{i}": t for i, t in enumerate(self.average.mean)}
        tensors["torch_random"] = torch.get_rng_state()
        if self._device.type == "cuda":
            tensors["device_random"] = torch.cuda.get_rng_state(self._device)
        values = {"step": self.step, "window": self._at.window, "drawn": self._at.drawn}
        randoms = {"window_random": self._at.began, "random": self._at.random}
        return State(tensors, {**values, **randoms, "rows": self._snapshot})

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Restores the state of a stepper with the same model, rows and recipe."""
        self._model.load_state_dict(state.under("model"))
        dense = self._dense.state_dict()
        dense["state"] = {}
        for name, value in state.under("dense").items():
            index, key = name.split(".")
            dense["state"].setdefault(int(index), {})[key] = value
        self._dense.load_state_dict(dense)
        accumulators = [] if self._resident else self._sparse.accumulators()
        for name, tensors in (("sparse", accumulators), ("average", self.average.mean)):
            saved = state.under(name)
            for i, tensor in enumerate(tensors):
                tensor.copy_(saved[str(i)])
        torch.set_rng_state(state.tensors["torch_random"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state.tensors["device_random"], self._device)
        values = state.values
        self.step, self._snapshot = values["step"], values["rows"]
        self._at = Position(values["window"], values["drawn"], values["window_random"], values["random"])
        if self._resident:
            self._resident.resident.restore(self._snapshot)
