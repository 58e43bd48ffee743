"""Validates Open Inference Protocol input tensors against the schema and converts them to rows of stable ids.

A request has one of two forms. The plain form repeats the context in every row:

    dense             FP32  [B, dense features]          in the order of the schema file
    sparse            INT64 [B, single-valued features]  stable ids, in the order of the schema file
    <feature>.values  INT64 [n]                          ids of a multi-valued feature, row by row
    <feature>.lengths INT64 or INT32 [B]                 number of ids in each row

The ranking form has each context once, so the features of the two roles are in separate inputs:

    context.dense, context.sparse      [C, ...]   the features of one role, in the order of the schema file
    candidate.dense, candidate.sparse  [B, ...]
    <feature>.values, <feature>.lengths           as above, lengths [C] for a context feature, else [B]
    context_lengths   INT64 or INT32 [C]          number of candidates of each context; sums to B.
                                                  Optional with one context.

If the schema has request features, plain rows may belong to several requests:

    group.lengths     INT64 or INT32 [G]          number of rows of each request; sums to B

In that case, ids of a feature that request features compare may be negative. A negative id stands for a value
without an id, which equals values with the same number.

Inputs of zero width are optional. The two inputs of a multi-valued feature may be omitted together, which
makes its lists empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import ROLES, Role, Schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.plan import Limits
from polyrec.server.codecs.repeated_contexts import RepeatedContexts
from polyrec.server.codecs.request_features import TensorFeatures
from polyrec.server.codecs.rows import RankedTensors, RoleTensors, Tensors
from polyrec.server.errors import Malformed, TooLarge, shortened

Array = NDArray[Any]

MAX_ROWS = 2**40
"""Upper limit on the first dimension of every tensor, so that no product of dimensions overflows."""
CONTEXT_LENGTHS, GROUP_LENGTHS = "context_lengths", "group.lengths"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type and shape of one model input. The first dimension is -1; lengths may also be `INT32`."""

    name: str
    datatype: Literal["FP32", "INT64"]
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def accepted(self) -> tuple[str, ...]:
        return ("INT64", "INT32") if self.name.endswith("lengths") else (self.datatype,)

    def check_shape(self, datatype: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Validates type and shape of an array; returns the shape to use. Raises Malformed."""
        if datatype != self.datatype and datatype not in self.accepted:
            raise Malformed(
                f"input '{self.name}' has datatype {shortened(datatype)}; "
                f"expected {' or '.join(self.accepted)}"
            )
        found = tuple(shape)
        # some clients send [B, 1] instead of [B] for a batch of scalars
        if len(self.shape) == 1 and len(found) == 2 and found[1] == 1:
            found = found[:1]
        if not found or not 0 <= found[0] < MAX_ROWS or found[1:] != self.shape[1:]:
            raise Malformed(f"input '{self.name}' has shape {list(shape)}; expected {list(self.shape)}")
        return found


@dataclass(frozen=True, slots=True)
class _InputGroup:
    """Inputs that share rows: a dense one, a sparse one, and multi-valued features by name."""

    dense: TensorSpec
    sparse: TensorSpec
    bags: tuple[str, ...]

    @staticmethod
    def from_counts(prefix: str, dense: int, sparse: int, bags: Iterable[str]) -> _InputGroup:
        return _InputGroup(
            TensorSpec(f"{prefix}dense", "FP32", (-1, dense), optional=not dense),
            TensorSpec(f"{prefix}sparse", "INT64", (-1, sparse), optional=not sparse),
            tuple(bags),
        )

    @property
    def matrices(self) -> tuple[TensorSpec, TensorSpec]:
        return self.dense, self.sparse

    def missing(self, tensors: Mapping[str, Array]) -> str | None:
        """Returns the first missing required input, None if none is missing."""
        return next((d.name for d in self.matrices if not d.optional and d.name not in tensors), None)

    def count(self, tensors: Mapping[str, Array]) -> int | None:
        """Returns the number of rows, None without any input. Raises Malformed if inputs disagree."""
        rows: int | None = None
        first = ""
        for name in (self.dense.name, self.sparse.name, *(f"{bag}.lengths" for bag in self.bags)):
            tensor = tensors.get(name)
            if tensor is None:
                continue
            if rows is not None and len(tensor) != rows:
                raise Malformed(f"input '{name}' has {len(tensor)} rows, '{first}' has {rows}")
            rows, first = len(tensor), name
        return rows

    def read(self, tensors: Mapping[str, Array], rows: int) -> RoleTensors:
        """Collects the inputs. Raises Malformed if lengths and values do not match."""
        dense, sparse = tensors.get(self.dense.name), tensors.get(self.sparse.name)
        bags: dict[str, tuple[I64, I64]] = {}
        for name in self.bags:
            values, lengths = tensors.get(f"{name}.values"), tensors.get(f"{name}.lengths")
            if (values is None) != (lengths is None):
                given, absent = ("lengths", "values") if values is None else ("values", "lengths")
                raise Malformed(f"input '{name}.{given}' is given without '{name}.{absent}'")
            if values is None or lengths is None:
                values, lengths = np.empty(0, np.int64), np.zeros(rows, np.int64)
            # checked before summing, as sums of huge lengths can overflow to any total
            if lengths.size and (lengths.min() < 0 or lengths.max() > values.size):
                at = int(np.argmax((lengths < 0) | (lengths > values.size)))
                raise Malformed(
                    f"input '{name}.lengths': {int(lengths[at])} at position {at} is outside "
                    f"[0, {values.size}], as '{name}.values' has {values.size}"
                )
            # checked before merging, where one query's surplus could offset another's deficit
            if int(lengths.sum()) != values.size:
                raise Malformed(
                    f"input '{name}.lengths' adds up to {int(lengths.sum())}, "
                    f"'{name}.values' has {values.size}"
                )
            bags[name] = values, lengths.astype(np.int64, copy=False)
        return RoleTensors(
            np.empty((rows, 0), np.float32) if dense is None else dense,
            np.empty((rows, 0), np.int64) if sparse is None else sparse,
            bags,
        )


class Inputs:
    """The inputs of one schema.

    vocabularies: by table, needed for request features.
    plain, ranking: inputs of each form with nonzero width; inputs of multi-valued features are only in
        `plain`.
    required: a minimal set of inputs for a valid request, each with one row per row of the batch.
    """

    def __init__(
        self, schema: Schema, limits: Limits, vocabularies: Mapping[str, Vocabulary] | None = None
    ) -> None:
        self._limits = limits
        self._request = TensorFeatures(schema, vocabularies or {}) if schema.request else None
        self._repeated = RepeatedContexts(schema)
        bags = [f.name for f in schema.categorical if f.multi]
        self._plain = _InputGroup.from_counts("", len(schema.dense), len(schema.singles), bags)
        self._groups: dict[Role, _InputGroup] = {}
        for role in ROLES:
            layout = schema.layout(role)
            role_bags = (f.name for f in layout.bags)
            self._groups[role] = _InputGroup.from_counts(
                f"{role}.", len(layout.supplied), len(layout.singles), role_bags
            )
        bag_inputs = [
            TensorSpec(f"{name}.{part}", "INT64", (-1,), optional=True)
            for name in bags
            for part in ("values", "lengths")
        ]
        split = [d for part in self._groups.values() for d in part.matrices]
        lengths = TensorSpec(CONTEXT_LENGTHS, "INT64", (-1,), optional=True)
        groups = [TensorSpec(GROUP_LENGTHS, "INT64", (-1,), optional=True)] if schema.request else []
        self.plain = tuple(d for d in (*self._plain.matrices, *bag_inputs, *groups) if d.shape[-1])
        self.ranking = tuple(d for d in (*split, lengths) if d.shape[-1])
        self.required = tuple(d for d in self.plain if not d.optional) or self.plain
        self._known = {d.name: d for d in (*self._plain.matrices, *bag_inputs, *groups, *split, lengths)}
        self._only_ranking = frozenset(d.name for d in (*split, lengths))

    def declared(self, name: str) -> TensorSpec:
        """Returns the declaration of an input. Raises Malformed for an unknown name."""
        known = self._known.get(name)
        if known is None:
            plain, ranking = (", ".join(d.name for d in form) for form in (self.plain, self.ranking))
            raise Malformed(
                f"unknown input '{shortened(name)}'; the model has {plain}; for a ranking {ranking}"
            )
        return known

    def check_shape(self, declared: TensorSpec, datatype: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Validates type and shape of an array; returns the shape to use. Raises Malformed or TooLarge."""
        found = declared.check_shape(datatype, shape)
        # check rows before parsing any data
        if len(found) > 1:
            self._check_rows(found[0])
        return found

    def raw(self, body: bytes) -> dict[str, Array]:
        """Reads a raw body, which consists of all rows of `dense` and then all rows of `sparse`."""
        dense_features, singles = self._plain.dense.shape[1], self._plain.sparse.shape[1]
        row_bytes = 4 * dense_features + 8 * singles
        if not row_bytes or not body or len(body) % row_bytes:
            raise Malformed(
                f"a raw request is whole rows of {row_bytes} bytes "
                f"(dense FP32 [{dense_features}], then sparse INT64 [{singles}]), not {len(body)} bytes"
            )
        rows = len(body) // row_bytes
        dense = np.frombuffer(body, "<f4", rows * dense_features).reshape(rows, dense_features)
        sparse = np.frombuffer(body, "<i8", rows * singles, offset=dense.nbytes)
        return {"dense": dense, "sparse": sparse.reshape(rows, singles)}

    def rows(self, tensors: Mapping[str, Array]) -> Tensors | RankedTensors:
        """Converts validated arrays, by input name, to rows. Converts repeated contexts to a ranking.

        Raises TooLarge, or Malformed with the name of the input.
        """
        if not self._only_ranking.isdisjoint(tensors):
            return self._ranked(tensors)
        _require(self._plain.missing(tensors))
        rows = self._allowed(self._plain.count(tensors))
        plain = self._plain.read(tensors, rows)
        if self._request is None:
            return self._repeated(Tensors(plain.dense, plain.sparse, plain.bags, rows))
        lengths = tensors.get(GROUP_LENGTHS)
        if lengths is not None:
            lengths = _segments(GROUP_LENGTHS, lengths, None, rows)
        features, sparse, bags = self._request.plain(plain.dense, plain.sparse, plain.bags, lengths)
        return self._repeated(Tensors(plain.dense, sparse, bags, rows, features, lengths))

    def _ranked(self, tensors: Mapping[str, Array]) -> RankedTensors:
        """Converts the arrays of the ranking form. Raises TooLarge or Malformed."""
        self._check_no_plain_input(tensors)
        context, candidate = self._groups["context"], self._groups["candidate"]
        _require(context.missing(tensors) or candidate.missing(tensors))
        lengths = tensors.get(CONTEXT_LENGTHS)
        contexts, rows = context.count(tensors), candidate.count(tensors)
        if contexts is None:
            contexts = 1 if lengths is None else len(lengths)
        # without candidate inputs, only the lengths imply the number of candidates
        if rows is None and lengths is not None:
            rows = int(lengths.sum())
        rows = self._allowed(rows)
        sizes = _context_sizes(lengths, contexts, rows)
        context_row = np.zeros(rows, np.int64) if contexts == 1 else np.repeat(np.arange(contexts), sizes)
        of_context, of_rows = context.read(tensors, contexts), candidate.read(tensors, rows)
        if self._request is None:
            return RankedTensors(of_context, of_rows, context_row, None, sizes)
        features, of_context.sparse, of_context.bags, of_rows.sparse = self._request.ranked(
            (of_context.sparse, of_context.bags), (of_rows.dense, of_rows.sparse), context_row, sizes
        )
        return RankedTensors(of_context, of_rows, context_row, features, sizes)

    def _check_no_plain_input(self, tensors: Mapping[str, Array]) -> None:
        """Raises Malformed if inputs of the plain form stand beside those of a ranking."""
        # without request features it is an ordinary input, the lengths of a feature named group
        if self._request is not None and GROUP_LENGTHS in tensors:
            raise Malformed(
                f"input '{GROUP_LENGTHS}' cannot be combined with a ranking; its contexts are its requests"
            )
        for declared in self._plain.matrices:
            if declared.name in tensors:
                odd = next(name for name in tensors if name in self._only_ranking)
                raise Malformed(
                    f"input '{declared.name}' does not go with '{odd}'; a ranking has "
                    f"'context.{declared.name}' and 'candidate.{declared.name}' instead"
                )

    def _allowed(self, rows: int | None) -> int:
        if not rows:
            raise Malformed("the request has no rows")
        self._check_rows(rows)
        return rows

    def _check_rows(self, rows: int) -> None:
        if rows > self._limits.max_request_rows:
            raise TooLarge(f"the request has {rows} rows; the limit is {self._limits.max_request_rows}")


def _require(missing: str | None) -> None:
    if missing is not None:
        raise Malformed(f"input '{missing}' is missing")


def _context_sizes(lengths: Array | None, contexts: int, rows: int) -> Array:
    """Returns the candidates of each context, [contexts]; without lengths, one context has all rows.

    Raises Malformed.
    """
    if not contexts:
        raise Malformed("the request has no contexts")
    if lengths is not None:
        return _segments(CONTEXT_LENGTHS, lengths, contexts, rows)
    if contexts != 1:
        raise Malformed(f"input '{CONTEXT_LENGTHS}' is missing; there are {contexts} contexts")
    return np.array([rows])


def _segments(name: str, lengths: Array, contexts: int | None, rows: int) -> Array:
    """Validates that lengths assign every row to a context or request, none of them empty.

    contexts: the number of contexts, None for requests. Raises Malformed.
    """
    if contexts is not None and len(lengths) != contexts:
        raise Malformed(f"input '{name}' has {len(lengths)} lengths; there are {contexts} contexts")
    what = "rows" if contexts is None else "candidates"
    # contexts without candidates would cost work that max_request_rows does not limit
    if not len(lengths) or lengths.min() < 1 or lengths.max() > rows:
        if not len(lengths):
            raise Malformed(f"input '{name}' has no lengths; there are {rows} {what}")
        at = int(np.argmax((lengths < 1) | (lengths > rows)))
        raise Malformed(f"input '{name}': {int(lengths[at])} at position {at} is outside [1, {rows}]")
    if (total := int(lengths.sum(dtype=np.int64))) != rows:
        raise Malformed(f"input '{name}' adds up to {total}; there are {rows} {what}")
    return lengths
