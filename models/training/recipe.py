"""The hyperparameters of training, one part of a recipe file (models/training/pipeline.py)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.files import Strict

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
    precision: of the products of net and decoders in a step; bf16 by autocast, while weights, optimizer
    state, loss and validation stay fp32.
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
    precision: Literal["fp32", "bf16"] = "fp32"
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
