"""The schema: names the features of a request and how each becomes numbers.

A YAML or JSON file in, one frozen, validated `Schema` out. Everything else (readers, vocabulary,
model, request format) is derived from it, so that a feature is described in one place.

Features have a role. *Context* features are shared by all rows of a request (the user, the query),
*candidate* features differ per row (the item, its price). Inside one role the order is fixed: the
single-valued features first, then the multi-valued ones (bags), each in the order of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from polyrec.models.errors import SchemaError
from polyrec.models.files import Strict, read_shipped

Role = Literal["context", "candidate"]
ROLES: tuple[Role, Role] = ("context", "candidate")
Pooling = Literal["sum", "mean"]
Transform = Literal["log1p", "standardise"]

BUILT_IN = Path(__file__).parent / "schemas"

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
RESERVED = {"dense", "sparse", "probability"}


class Dense(Strict):
    """A number. Missing values become `missing`, after the transforms.

    Transforms apply in order: `log1p` is log(1 + max(x, 0)); `standardise` subtracts the mean and
    divides by the standard deviation of the training rows.
    """

    name: Name
    role: Role = "candidate"
    transform: tuple[Transform, ...] = ()
    missing: float = 0.0


class Categorical(Strict):
    """An id, or with `pooling` a list of ids whose vectors are summed or averaged.

    `cardinality`: the values are the integers 0 ... cardinality-1. Without it a vocabulary is built
    from the training rows: values seen at least `min_count` times, at most the `max_values` most
    frequent. `oov`: an unknown value is served by the table's out-of-vocabulary row, or refused.
    Features that name the same `table` share rows and vocabulary.
    """

    name: Name
    role: Role = "candidate"
    type: Literal["string", "integer"] = "string"
    table: Name | None = None
    cardinality: Annotated[int, Field(ge=1)] | None = None
    min_count: Annotated[int, Field(ge=1)] = 1
    max_values: Annotated[int, Field(ge=1)] | None = None
    oov: Literal["row", "refuse"] = "row"
    pooling: Pooling | None = None
    max_length: Annotated[int, Field(ge=1)] = 256

    @property
    def multi(self) -> bool:
        return self.pooling is not None

    @property
    def table_name(self) -> str:
        return self.table or self.name

    @model_validator(mode="after")
    def _consistent(self) -> Categorical:
        if self.cardinality is not None and self.type != "integer":
            raise ValueError(f"feature '{self.name}': a cardinality needs type: integer")
        if self.cardinality is not None and (self.min_count > 1 or self.max_values):
            raise ValueError(
                f"feature '{self.name}': min_count and max_values shape a vocabulary; "
                "they do not go with a cardinality"
            )
        return self


class Label(Strict):
    """The click: a row is positive where `column` exceeds `positive_above`.

    negatives_kept: share of the negative rows that sampling left in the data. Probabilities are of the
    unsampled traffic, and metrics count each negative 1 / negatives_kept times.
    """

    column: str
    positive_above: float = 0.0
    negatives_kept: Annotated[float, Field(gt=0, le=1)] = 1.0


class Split(Strict):
    """The rule that assigns rows to training, validation and test.

    `time`: by the quantiles of one column; rows below the `train` quantile train, the rest test, and
    the last `validation` share of the training rows (by the same column) chooses hyperparameters.
    `hash`: by a stable hash of the columns' values. `column`: a column that says train, validation
    or test.
    """

    rule: Literal["time", "hash", "column"]
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    train: Annotated[float, Field(gt=0, lt=1)] = 0.8
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1

    @model_validator(mode="after")
    def _one_column(self) -> Split:
        if self.rule != "hash" and len(self.columns) != 1:
            raise ValueError(f"split rule '{self.rule}' takes exactly one column")
        return self


@dataclass(frozen=True, slots=True)
class RoleLayout:
    """The features of one role, in slot order."""

    dense: tuple[Dense, ...]
    singles: tuple[Categorical, ...]
    bags: tuple[Categorical, ...]

    @property
    def categorical(self) -> tuple[Categorical, ...]:
        return self.singles + self.bags

    @property
    def names(self) -> tuple[str, ...]:
        return (*(f.name for f in self.dense), *(f.name for f in self.categorical))


class Schema(Strict):
    """The features of requests and data, the label, and the split."""

    name: Name
    dense: tuple[Dense, ...] = ()
    categorical: tuple[Categorical, ...] = ()
    label: Label
    group: str | None = None
    split: Split

    @model_validator(mode="after")
    def _consistent(self) -> Schema:
        names = [*(f.name for f in self.dense), *(f.name for f in self.categorical)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"feature '{name}' is defined twice")
            if name in RESERVED:
                raise ValueError(f"feature name '{name}' is reserved by the inference protocol")
            if name == self.label.column:
                raise ValueError(f"the label's column '{name}' cannot be a feature: it would give it away")
        if not self.categorical:
            raise ValueError("a recommendation model needs at least one categorical feature")
        first: dict[str, Categorical] = {}
        for f in self.categorical:
            head = first.setdefault(f.table_name, f)
            for key in ("type", "cardinality", "min_count", "max_values", "oov"):
                if getattr(f, key) != getattr(head, key):
                    raise ValueError(
                        f"features '{head.name}' and '{f.name}' share table '{f.table_name}' "
                        f"but differ in {key}"
                    )
        return self

    @cached_property
    def context(self) -> RoleLayout:
        return self._layout("context")

    @cached_property
    def candidate(self) -> RoleLayout:
        return self._layout("candidate")

    def layout(self, role: Role) -> RoleLayout:
        return self.context if role == "context" else self.candidate

    def _layout(self, role: Role) -> RoleLayout:
        categorical = [f for f in self.categorical if f.role == role]
        return RoleLayout(
            dense=tuple(f for f in self.dense if f.role == role),
            singles=tuple(f for f in categorical if not f.multi),
            bags=tuple(f for f in categorical if f.multi),
        )

    @cached_property
    def slots(self) -> tuple[Categorical, ...]:
        """Categorical features in the order in which the model sees their vectors."""
        return self.context.categorical + self.candidate.categorical

    @cached_property
    def tables(self) -> dict[str, tuple[Categorical, ...]]:
        """Table name -> the features that share it, tables in order of first mention."""
        tables: dict[str, tuple[Categorical, ...]] = {}
        for f in self.categorical:
            tables[f.table_name] = (*tables.get(f.table_name, ()), f)
        return tables

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column of the data that training and evaluation read, each once."""
        names = [*(f.name for f in self.dense), *(f.name for f in self.categorical)]
        names += [self.label.column, *self.split.columns, *([self.group] if self.group else [])]
        return tuple(dict.fromkeys(names))


def load_schema(path: str | Path) -> Schema:
    """Reads a YAML or JSON schema file; a bare name (`trivago`) means one that ships with Polyrec.

    Raises SchemaError, in one line that names the key and the offense.
    """
    return read_shipped(Schema, path, "schema", BUILT_IN, SchemaError)
