"""Defines recipe files: architecture, hyperparameters of training, and parameters of computed
representations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.representation import Representation, RepresentationKind
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.embeddings.cuts import stored_but_largest, stored_within
from polyrec.models.errors import DataError
from polyrec.models.files import Strict, one_line, read_shipped
from polyrec.models.schema.schema import Schema
from polyrec.models.schema.vocabulary import Vocabulary

RECIPES = Path(__file__).parent / "recipes"
MAX_BATCH_ROWS, MIN_BATCH_ROWS = 512, 64
MIN_STEPS = 100


class Recipe(Strict):
    """Hyperparameters of training. The defaults are the best on average over the public data sets
    (docs/results/recipes.md).

    batch_rows: rows per step; None: MAX_BATCH_ROWS, or fewer (down to MIN_BATCH_ROWS) to get MIN_STEPS
    per epoch.
    by_request: whether batches are whole requests, see models/training/row_order.py; None: if the schema has
    a group.
    dense_lr, sparse_lr: step sizes of Adam and of row-wise Adagrad.
    warm_up: share of all steps in which both step sizes rise from zero; afterwards they fall linearly to
    `final_lr` of their maximum.
    linear_start: [least, beyond]; with at least `least` and fewer than `beyond` training rows, the net begins
    nearly linear, see models/dlrm/linear_start.py; [0, 0]: never.
    row_decay, dense_decay: decoupled weight decay of touched rows and of the MLPs.
    row_spread: see TableStage.initial.
    hide: id dropout, see models/training/id_dropout.py. `unseen` measures its rates on the validation rows
    (models/training/unseen.py); a number applies to every vocabulary of at least `hide_from_rows` rows. An id
    dropped in a shared context is dropped for all its rows.
    average: see WeightAverage.
    listwise: weight of the listwise softmax loss against log-loss (requires by_request).
    calibrate: whether scale and level of the logits are fitted on the validation rows; see
    models/training/objective.py.
    block_lr: with nested widths, factors of `sparse_lr` for the columns that each width adds; empty: 1.
    precision: of the products of net and decoders in a step. bf16 uses autocast; weights, optimizer state,
    loss and validation stay fp32.
    distill: with nested widths, the weight of the widest head's probability in the narrow heads' targets.
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
    linear_start: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = 5_000, 50_000
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

    @model_validator(mode="after")
    def _range_of_linear_start(self) -> Recipe:
        least, beyond = self.linear_start
        if least > beyond:
            raise ValueError(f"linear_start: the range of {least} to {beyond} rows is empty ([0, 0]: never)")
        return self

    def starts_linear(self, rows: int) -> bool:
        """Returns whether a training on this many rows begins nearly linear."""
        least, beyond = self.linear_start
        return least <= rows < beyond

    def rows_of_step(self, rows: int) -> int:
        """Returns the rows per step, given the number of training rows."""
        if self.batch_rows is not None:
            return self.batch_rows
        return min(MAX_BATCH_ROWS, max(MIN_BATCH_ROWS, rows // MIN_STEPS))

    def steps_per_epoch(self, rows: int) -> int:
        """Returns the steps per epoch, given the number of training rows."""
        return -(-rows // self.rows_of_step(rows))


class Select(Strict):
    """The rows that `select` stores.

    largest: all tables but this many largest ones are stored (MP-Rec).
    share: instead, this share of all rows is stored, the most accessed ones over all tables.
    """

    largest: Annotated[int, Field(ge=1)] = 5
    share: Annotated[float, Field(gt=0, lt=1)] | None = None

    def cuts(self, vocabularies: Mapping[str, Vocabulary]) -> dict[str, int]:
        """Returns the number of rows that each table stores."""
        if self.share is None:
            return stored_but_largest(vocabularies, self.largest)
        return stored_within(vocabularies, round(self.share * sum(v.rows for v in vocabularies.values())))


class RecipeFile(Strict):
    """A recipe file: architecture, hyperparameters, and parameters of computed representations."""

    architecture: Architecture = Architecture()
    recipe: Recipe = Recipe()
    encoding: Encoding = Encoding()
    select: Select = Select()

    @model_validator(mode="after")
    def _one_step_size_for_each_width(self) -> RecipeFile:
        given, widths = self.recipe.block_lr, self.architecture.widths
        if given and len(given) != len(widths):
            raise ValueError(f"recipe.block_lr has {len(given)} step sizes for {len(widths)} nested widths")
        return self

    def representation(
        self, kind: RepresentationKind, vocabularies: Mapping[str, Vocabulary]
    ) -> Representation:
        """Returns the representation of a kind, for tables of these sizes and popularity."""
        if kind == "table":
            return Representation()
        cuts = self.select.cuts(vocabularies) if kind == "select" else {}
        return Representation(kind=kind, encoding=self.encoding, cuts=cuts)

    def with_share(self, share: float) -> RecipeFile:
        """Returns a copy in which `select` stores another share of the rows.

        Raises DataError unless it is in (0, 1).
        """
        try:
            return self.model_copy(update={"select": Select(share=share)})
        except ValidationError as e:
            raise DataError(one_line(e)) from None

    def with_widths(self, widths: tuple[int, ...]) -> RecipeFile:
        """Returns a copy that trains these nested widths, the last of which is the table's."""
        shape = self.architecture.model_copy(update={"width": widths[-1], "widths": widths})
        return self.model_copy(update={"architecture": shape})

    def with_shape(self, changes: Mapping[str, Any]) -> RecipeFile:
        """Returns a copy with some keys of the architecture changed. Raises DataError for a value out of
        range.
        """
        try:
            shape = Architecture.model_validate(self.architecture.model_dump() | dict(changes))
        except ValidationError as e:
            raise DataError(one_line(e)) from None
        return self.model_copy(update={"architecture": shape})

    def with_recipe(self, changes: Mapping[str, Any]) -> RecipeFile:
        """Returns a copy with some keys of the recipe changed. Raises DataError for a value out of range."""
        try:
            recipe = Recipe.model_validate(self.recipe.model_dump() | dict(changes))
        except ValidationError as e:
            raise DataError(one_line(e)) from None
        return self.model_copy(update={"recipe": recipe})


def load_recipe_file(name: str | Path) -> RecipeFile:
    """Reads a recipe file; a bare name selects one that ships with Polyrec. Raises DataError."""
    return read_shipped(RecipeFile, name, "recipe", RECIPES, DataError)


def default_recipe_file(schema: Schema) -> RecipeFile:
    """Returns the shipped recipe with the schema's name, else the general one."""
    file = RECIPES / f"{schema.name}.yaml"
    return load_recipe_file(file) if file.exists() else RecipeFile()
