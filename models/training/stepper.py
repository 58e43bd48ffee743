"""Takes optimizer steps, and can be saved after any of them and go on as if it had not stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from polyrec.models.training.workers.workers import Workers


def dense_parameters(model: DLRM) -> list[Parameter]:
    """Returns all weights but the rows: those that every step updates."""
    return [*model.net.parameters(), *model.stage.dense_parameters()]


class WeightAverage:
    """An exponential moving average of the dense weights, which predicts better than the last step's.

    rate: weight of the old average at each step; it rises from 0.1 to this value, so that the first steps are
    forgotten. The statistics of batch norms are averaged like the weights that they belong to. Embedding rows
    are not averaged: that gained nothing and would touch every row.

    mean: the average, unless it is swapped in.
    """

    def __init__(self, model: DLRM, rate: float) -> None:
        self._rate = rate
        self._weights = [*dense_parameters(model), *running_statistics(model)]
        self.mean = [w.detach().clone() for w in self._weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Adds the weights after optimizer step `step`."""
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


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was taken. number: from 1. rows: of its batch. learning_rate: of the net."""

    number: int
    loss: float
    rows: int
    learning_rate: float


class Stepper:
    """Iterates over up to `total` optimizer steps on the windows of `source`, epoch after epoch.

    average: of the dense weights, updated after every step. workers: those that share every step's rows; the
    model's rows are then theirs (models/training/workers), and every one of them iterates.
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
        # workers draw the same order, but hide ids in rows of their own
        self._hiding = np.random.default_rng((recipe.seed, workers.rank)) if workers else self._random
        self._workers = workers
        if workers:
            workers.begin(model, self._sparse)
        # The position: the window, the batches drawn of it, and the random state when it began, from which
        # its order can be drawn again.
        self._window = self._drawn = 0
        self._began: Mapping[str, Any] = self._random.bit_generator.state
        self._resume_at: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[Step]:
        while self.step < self.total:
            before = self.step
            for window in self._source.windows(self._window):
                for chosen in self._order(window):
                    loss = self._take(window, chosen)
                    yield Step(self.step, loss, chosen.size, self._dense.param_groups[0]["lr"])
                    if self.step >= self.total:
                        return
                self._window, self._drawn = self._window + 1, 0
            if self.step == before and not self._window:
                raise DataError("there are no rows to train on")
            self._window = 0

    def _order(self, window: Rows) -> Iterator[I64]:
        """Yields the batches of a window that were not drawn yet."""
        if self._resume_at is None:
            self._began = self._random.bit_generator.state
        else:
            self._random.bit_generator.state = self._began
        if self._workers:
            order = self._workers.epoch(window, self._group(window), self._batch_rows, self._random)
        else:
            order = epoch(window.rows, self._group(window), self._batch_rows, self._random)
        for _ in range(self._drawn):
            next(order)
        if self._resume_at is not None:
            self._random.bit_generator.state, self._resume_at = self._resume_at, None
        for chosen in order:
            self._drawn += 1
            yield chosen

    def _group(self, window: Rows) -> I64 | None:
        """The request of each row, if batches are of whole requests. Raises DataError."""
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

    def _take(self, window: Rows, chosen: I64) -> float:
        recipe = self._recipe
        self._model.train()
        self._dense.zero_grad(set_to_none=True)
        if self._workers:
            draw, loss_of = partial(self._draw, window), partial(self._loss, window)
            loss = self._workers.backward(chosen, self._group(window), draw, loss_of)
        else:
            whole = self._loss(window, self._draw(window, chosen), chosen)
            whole.backward()  # type: ignore[no-untyped-call]
            loss = whole.item()
        fall = recipe.final_lr + (1 - recipe.final_lr) * (1 - self.step / self.total)
        scale = min((self.step + 1) / max(1, int(self.total * recipe.warm_up)), fall)
        self._dense.param_groups[0]["lr"] = recipe.dense_lr * scale
        self._dense.step()
        self._sparse.step(scale)
        self.step += 1
        self.average.update(self.step)
        return loss

    def _draw(self, window: Rows, chosen: I64) -> Batch:
        """Returns the batch of some rows, with ids hidden."""
        batch = window.data.batch(chosen)
        return self._hide(batch, self._hiding) if self._hide else batch

    def _loss(self, window: Rows, batch: Batch, chosen: I64) -> Tensor:
        """Returns the mean loss of a batch, whose rows are `chosen`."""
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

    def state(self) -> State:
        """Everything that the next steps depend on, without copies: to be written before the next one."""
        tensors = {f"model.{name}": t for name, t in self._model.state_dict().items()}
        for index, entries in self._dense.state_dict()["state"].items():
            tensors |= {f"dense.{index}.{key}": value for key, value in entries.items()}
        tensors |= {f"sparse.{i}": t for i, t in enumerate(self._sparse.accumulators())}
        tensors |= {f"average.{i}": t for i, t in enumerate(self.average.mean)}
        tensors["torch_random"] = torch.get_rng_state()
        if self._device.type == "cuda":
            tensors["device_random"] = torch.cuda.get_rng_state(self._device)
        values = {"step": self.step, "window": self._window, "drawn": self._drawn}
        randoms = {"window_random": self._began, "random": self._random.bit_generator.state}
        return State(tensors, {**values, **randoms})

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Goes back to a state of a stepper of the same model, rows and recipe."""
        self._model.load_state_dict(state.under("model"))
        dense = self._dense.state_dict()
        dense["state"] = {}
        for name, value in state.under("dense").items():
            index, key = name.split(".")
            dense["state"].setdefault(int(index), {})[key] = value
        self._dense.load_state_dict(dense)
        for of, own in (("sparse", self._sparse.accumulators()), ("average", self.average.mean)):
            saved = state.under(of)
            for i, tensor in enumerate(own):
                tensor.copy_(saved[str(i)])
        torch.set_rng_state(state.tensors["torch_random"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state.tensors["device_random"], self._device)
        values = state.values
        self.step, self._window, self._drawn = values["step"], values["window"], values["drawn"]
        self._began, self._resume_at = values["window_random"], values["random"]
