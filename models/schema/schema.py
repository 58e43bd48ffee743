"""Defines the schema, which names the features of a request and how each becomes numbers.

`load_schema` reads a YAML or JSON file into one frozen, validated `Schema`. Everything else (readers,
vocabulary, model, request format) derives from it, so that a feature is described in one place.

*Context* features are shared by all rows of a request (the user, the query), *candidate* features differ per
row (the item, its price). Within a role the order is fixed: single-valued features first, then multi-valued
ones (bags), each in the order of the file. *Request* features are numbers of a candidate that are computed
from all rows of its request (models/schema/request/features.py); clients and data never supply them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from polyrec.models.errors import SchemaError
from polyrec.models.files import Strict, read_shipped

Role = Literal["context", "candidate"]
ROLES: tuple[Role, Role] = ("context", "candidate")
Pooling = Literal["sum", "mean"]
Transform = Literal["log1p", "standardise"]

BUILT_IN = Path(__file__).parent / "schemas"

NAME, LONGEST_NAME = r"[A-Za-z_][A-Za-z0-9_]*", 64
"""Names of features: an identifier (a regular expression), of at most so many characters."""
Name = Annotated[str, Field(pattern=f"^{NAME}$", max_length=LONGEST_NAME)]
RESERVED = {"dense", "sparse", "probability"}
Statistic = Literal["minimum", "maximum", "mean", "median", "previous", "next"]
STATISTICS: tuple[str, ...] = get_args(Statistic)
Compute = Literal[
    "rank",
    "difference",
    "ratio",
    "present",
    "position",
    "distance",
    "after",
    "before",
    "match",
    "place",
    "count",
    "listed",
    "relative_position",
    "length",
]
OF_NUMBER, OF_NUMBER_TO = ("rank",), ("difference", "ratio")
OF_MATCH = ("present", "position", "distance", "after", "before", "match", "place", "count", "listed")


class Dense(Strict):
    """A numeric feature. Missing values become `missing`, after the transforms.

    Transforms apply in order: `log1p` is log(1 + max(x, 0)); `standardise` subtracts the mean of the training
    rows, divides by their standard deviation and clips the result to ten deviations.
    """

    name: Name
    role: Role = "candidate"
    transform: tuple[Transform, ...] = ()
    missing: float = 0.0


class RequestFeature(Dense):
    """A numeric candidate feature computed from the rows of its request, as models/schema/request/features.py
    defines.

    of, to: the features it is computed from. `rank` takes a dense candidate feature as `of`. `difference` and
    `ratio` take one too, and as `to` a statistic of it over the request (`previous`, `next`: the adjacent
    rows). The others take a single-valued candidate feature as `of` and a context feature that shares its
    table as `to`. `relative_position` and `length` take neither.
    among: for `difference` and `ratio`, the name of a request feature with compute: match; only rows that
    match then enter the statistic.

    Undefined results are missing.
    """

    role: Literal["candidate"] = "candidate"
    compute: Compute
    of: Name | None = None
    to: Name | None = None
    among: Name | None = None

    @model_validator(mode="after")
    def _operands(self) -> RequestFeature:
        to = self.compute in OF_NUMBER_TO + OF_MATCH
        for key, needed in (("of", to or self.compute in OF_NUMBER), ("to", to)):
            if (getattr(self, key) is not None) != needed:
                verb = "needs" if needed else "takes no"
                raise ValueError(f"feature '{self.name}': compute: {self.compute} {verb} '{key}'")
        if self.among is not None and self.compute not in OF_NUMBER_TO:
            raise ValueError(f"feature '{self.name}': compute: {self.compute} takes no 'among'")
        if self.compute in OF_NUMBER_TO and self.to not in STATISTICS:
            raise ValueError(
                f"feature '{self.name}': 'to' is '{self.to}'; it must be one of {', '.join(STATISTICS)}"
            )
        return self


class Categorical(Strict):
    """An id, or with `pooling` a list of ids whose vectors are summed or averaged.

    cardinality: the values are the integers 0 ... cardinality-1. Without it, a vocabulary is built from the
    training rows: values seen at least `min_count` times, at most the `max_values` most frequent.
    oov: whether an unknown value uses the table's out-of-vocabulary row or is refused.
    table: features that name the same table share rows and vocabulary.
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
    """The label: a row is positive where `column` exceeds `positive_above`.

    negatives_kept: share of the negative rows that sampling kept in the data. Predictions are corrected to
    unsampled traffic, and metrics weight each negative by 1 / negatives_kept.
    """

    column: str
    positive_above: float = 0.0
    negatives_kept: Annotated[float, Field(gt=0, le=1)] = 1.0


class Split(Strict):
    """The rule that assigns rows to training, validation and test.

    `time`: by quantiles of one column. Rows below the `train` quantile train, the rest test; the last
    `validation` share of the training rows (by the same column) is for choosing hyperparameters. `hash`: by a
    stable hash of the columns' values. `column`: by a column that contains train, validation or test.
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
    """The features of one role, in slot order.

    dense: the model's numbers, with those computed from the request (`request`) last.
    """

    dense: tuple[Dense, ...]
    singles: tuple[Categorical, ...]
    bags: tuple[Categorical, ...]
    request: tuple[RequestFeature, ...] = ()

    @property
    def supplied(self) -> tuple[Dense, ...]:
        """The dense features that clients and data supply."""
        return self.dense[: len(self.dense) - len(self.request)]

    @property
    def categorical(self) -> tuple[Categorical, ...]:
        return self.singles + self.bags

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features that clients and data supply."""
        return (*(f.name for f in self.supplied), *(f.name for f in self.categorical))


class Schema(Strict):
    """The features of requests and data, the label, and the split.

    dense: numbers supplied by clients and data. request: numbers computed from a request's rows.
    group: the data column that identifies requests.
    """

    name: Name
    dense: tuple[Dense, ...] = ()
    categorical: tuple[Categorical, ...] = ()
    request: tuple[RequestFeature, ...] = ()
    label: Label
    group: str | None = None
    split: Split

    @model_validator(mode="after")
    def _consistent(self) -> Schema:
        names = [*(f.name for f in self.numbers), *(f.name for f in self.categorical)]
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
        self._check_request()
        return self

    def _check_request(self) -> None:
        numbers = {d.name for d in self.dense if d.role == "candidate"}
        singles = {f.name: f for f in self.categorical if f.role == "candidate" and not f.multi}
        contexts = {f.name: f for f in self.categorical if f.role == "context"}
        matches = {r.name for r in self.request if r.compute == "match"}
        for r in self.request:
            where = f"feature '{r.name}': compute: {r.compute}"
            if r.name == self.group:
                raise ValueError(f"{where}: the group's column '{r.name}' is not computed")
            if r.compute in OF_NUMBER + OF_NUMBER_TO and r.of not in numbers:
                raise ValueError(f"{where} is of a dense feature of the candidate, not of '{r.of}'")
            if r.among is not None and r.among not in matches:
                raise ValueError(
                    f"{where} is among rows of a feature with compute: match, not of '{r.among}'"
                )
            if r.compute in OF_MATCH:
                of, to = singles.get(r.of or ""), contexts.get(r.to or "")
                if of is None:
                    raise ValueError(
                        f"{where} is of a single-valued categorical feature of the candidate, not of '{r.of}'"
                    )
                if to is None:
                    raise ValueError(f"{where} is to a categorical feature of the context, not to '{r.to}'")
                if of.table_name != to.table_name:
                    raise ValueError(f"{where}: features '{r.of}' and '{r.to}' must share a table")
        bags = {f.name for f in self.categorical if f.multi}
        if self.request and (self.group is None or self.group in bags):
            raise ValueError(
                "features computed from the request need a group, a column of single values that tells "
                "requests apart"
            )
        if self.request and "group" in bags:
            raise ValueError("feature name 'group' is reserved by the inference protocol: group.lengths")

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
        request = self.request if role == "candidate" else ()
        return RoleLayout(
            dense=(*(f for f in self.dense if f.role == role), *request),
            singles=tuple(f for f in categorical if not f.multi),
            bags=tuple(f for f in categorical if f.multi),
            request=request,
        )

    @cached_property
    def numbers(self) -> tuple[Dense, ...]:
        """All dense features of the model: supplied ones, then request features."""
        return (*self.dense, *self.request)

    @cached_property
    def singles(self) -> tuple[Categorical, ...]:
        """Single-valued features of both roles, in the order of the schema file."""
        return tuple(f for f in self.categorical if not f.multi)

    def tensor_columns(self, role: Role | None = None) -> tuple[list[str], list[str]]:
        """Returns the column names of the inference protocol's `dense` and `sparse`. role: None for both
        roles.
        """
        if role is None:
            return [d.name for d in self.dense], [f.name for f in self.singles]
        layout = self.layout(role)
        return [d.name for d in layout.supplied], [f.name for f in layout.singles]

    @cached_property
    def slots(self) -> tuple[Categorical, ...]:
        """Categorical features in the order in which the model sees their vectors."""
        return self.context.categorical + self.candidate.categorical

    @cached_property
    def tables(self) -> dict[str, tuple[Categorical, ...]]:
        """Maps each table to the features that share it, in order of first mention."""
        tables: dict[str, tuple[Categorical, ...]] = {}
        for f in self.categorical:
            tables[f.table_name] = (*tables.get(f.table_name, ()), f)
        return tables

    @property
    def columns(self) -> tuple[str, ...]:
        """Every data column, once. `encoded_columns` adds request features."""
        names = [*(f.name for f in self.dense), *(f.name for f in self.categorical)]
        names += [self.label.column, *self.split.columns, *([self.group] if self.group else [])]
        return tuple(dict.fromkeys(names))

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """Every column that training and evaluation read, including request features."""
        return (*self.columns, *(f.name for f in self.request))


def load_schema(path: str | Path) -> Schema:
    """Reads a YAML or JSON schema file; a bare name (`trivago`) selects a schema that ships with Polyrec.

    Raises SchemaError with one line that names the key and the problem.
    """
    return read_shipped(Schema, path, "schema", BUILT_IN, SchemaError)
