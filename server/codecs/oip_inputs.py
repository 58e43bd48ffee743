"""The tensors of the inference protocol that a model takes, and the rows that they stand for.

Named arrays go in, checked against what the schema declares; rows of stable ids come out. A request
is in one of two forms. The plain one repeats the context in every row:

    dense             FP32  [B, dense features]          in the order of the schema file
    sparse            INT64 [B, single-valued features]  stable ids, in the order of the schema file
    <feature>.values  INT64 [n]                          ids of a multi-valued feature, row by row
    <feature>.lengths INT64 or INT32 [B]                 how many of them each row has

A ranking has each context once, so the two roles, which `dense` and `sparse` mix, come apart:

    context.dense, context.sparse      [C, ...]   the features of one role, in the order of the schema file
    candidate.dense, candidate.sparse  [B, ...]
    <feature>.values, <feature>.lengths           as above, lengths [C] for a context feature, else [B]
    context_lengths   INT64 or INT32 [C]          candidates of each context, one after another; they add
                                                  up to B. With one context it may be left out.

An input of zero width may be left out. The two inputs of a multi-valued feature may be left out
together: its lists are then empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import ROLES, Role, Schema
from polyrec.planner.plan import Limits
from polyrec.server.codecs.rows import RankedTensors, RoleTensors, Tensors
from polyrec.server.errors import Malformed, TooLarge, shortened

Array = NDArray[Any]

CONTEXT_LENGTHS = "context_lengths"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input of the model: its type (`INT32` is also read for lengths) and shape, -1 for any."""

    name: str
    datatype: Literal["FP32", "INT64"]
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def accepted(self) -> tuple[str, ...]:
        return ("INT64", "INT32") if self.name.endswith("lengths") else (self.datatype,)

    def check_shape(self, datatype: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape that an array of this input gets. Raises Malformed."""
        if datatype not in self.accepted:
            raise Malformed(
                f"input '{self.name}' has datatype {shortened(datatype)}; "
                f"expected {' or '.join(self.accepted)}"
            )
        found = tuple(shape)
        # A batch of scalars is [B]; clients that give every input a batch dimension send [B, 1].
        if len(self.shape) == 1 and len(found) == 2 and found[1] == 1:
            found = found[:1]
        if len(found) != len(self.shape) or any(
            n < 0 or n >= 2**40 or want not in (-1, n) for n, want in zip(found, self.shape, strict=True)
        ):
            raise Malformed(f"input '{self.name}' has shape {list(shape)}; expected {list(self.shape)}")
        return found


@dataclass(frozen=True, slots=True)
class _InputGroup:
    """Inputs that have the same rows: a dense and a sparse one, and the bags named."""

    dense: TensorSpec
    sparse: TensorSpec
    bags: tuple[str, ...]

    @staticmethod
    def of(prefix: str, dense: int, sparse: int, bags: Iterable[str]) -> _InputGroup:
        return _InputGroup(
            TensorSpec(f"{prefix}dense", "FP32", (-1, dense), optional=not dense),
            TensorSpec(f"{prefix}sparse", "INT64", (-1, sparse), optional=not sparse),
            tuple(bags),
        )

    @property
    def matrices(self) -> tuple[TensorSpec, TensorSpec]:
        return self.dense, self.sparse

    def missing(self, tensors: Mapping[str, Array]) -> str | None:
        """The first input that has to be there and is not."""
        return next((d.name for d in self.matrices if not d.optional and d.name not in tensors), None)

    def count(self, tensors: Mapping[str, Array]) -> int | None:
        """The number of rows on which all inputs agree; None if none is given. Raises Malformed."""
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
        """Raises Malformed: lengths without values, or that do not add up to them."""
        dense, sparse = tensors.get(self.dense.name), tensors.get(self.sparse.name)
        bags: dict[str, tuple[I64, I64]] = {}
        for name in self.bags:
            values, lengths = tensors.get(f"{name}.values"), tensors.get(f"{name}.lengths")
            if (values is None) != (lengths is None):
                given, absent = ("lengths", "values") if values is None else ("values", "lengths")
                raise Malformed(f"input '{name}.{given}' is given without '{name}.{absent}'")
            if values is None or lengths is None:
                values, lengths = np.empty(0, np.int64), np.zeros(rows, np.int64)
            # Here, not after merging: there one query's surplus could hide another's lack.
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
    """The inputs of one schema. plain, ranking: those of either form, of more than zero width;
    the bags' stand in `plain` only.
    """

    def __init__(self, schema: Schema, limits: Limits) -> None:
        self._limits = limits
        singles = [f for f in schema.categorical if not f.multi]
        bags = [f.name for f in schema.categorical if f.multi]
        self._plain = _InputGroup.of("", len(schema.dense), len(singles), bags)
        self._groups: dict[Role, _InputGroup] = {}
        for role in ROLES:
            layout = schema.layout(role)
            own = (f.name for f in layout.bags)
            self._groups[role] = _InputGroup.of(f"{role}.", len(layout.dense), len(layout.singles), own)
        bag_inputs = [
            TensorSpec(f"{name}.{part}", "INT64", (-1,), optional=True)
            for name in bags
            for part in ("values", "lengths")
        ]
        split = [d for part in self._groups.values() for d in part.matrices]
        lengths = TensorSpec(CONTEXT_LENGTHS, "INT64", (-1,), optional=True)
        self.plain = tuple(d for d in (*self._plain.matrices, *bag_inputs) if d.shape[-1])
        self.ranking = tuple(d for d in (*split, lengths) if d.shape[-1])
        self._known = {d.name: d for d in (*self._plain.matrices, *bag_inputs, *split, lengths)}
        self._only_ranking = frozenset(d.name for d in (*split, lengths))

    def declared(self, name: str) -> TensorSpec:
        """Raises Malformed for a name that the model does not have."""
        known = self._known.get(name)
        if known is None:
            plain, ranking = (", ".join(d.name for d in form) for form in (self.plain, self.ranking))
            raise Malformed(
                f"unknown input '{shortened(name)}'; the model has {plain}; for a ranking {ranking}"
            )
        return known

    def check_shape(self, declared: TensorSpec, datatype: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape that an array of this input gets. Raises Malformed, or TooLarge for too many rows."""
        found = declared.check_shape(datatype, shape)
        # Here, before any data are parsed.
        if len(found) > 1:
            self._check_rows(found[0])
        return found

    def raw(self, body: bytes) -> dict[str, Array]:
        """A body of nothing but tensors: all rows of `dense`, then all rows of `sparse`."""
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
        """Named arrays, each as declared -> rows. Raises Malformed naming the input, or TooLarge."""
        if not self._only_ranking.isdisjoint(tensors):
            return self._ranked(tensors)
        _require(self._plain.missing(tensors))
        rows = self._allowed(self._plain.count(tensors))
        own = self._plain.read(tensors, rows)
        return Tensors(own.dense, own.sparse, own.bags, rows)

    def _ranked(self, tensors: Mapping[str, Array]) -> RankedTensors:
        context, candidate = self._groups["context"], self._groups["candidate"]
        for declared in self._plain.matrices:
            if declared.name in tensors:
                odd = next(name for name in tensors if name in self._only_ranking)
                raise Malformed(
                    f"input '{declared.name}' does not go with '{odd}'; a ranking has "
                    f"'context.{declared.name}' and 'candidate.{declared.name}' instead"
                )
        _require(context.missing(tensors) or candidate.missing(tensors))
        lengths = tensors.get(CONTEXT_LENGTHS)
        contexts, rows = context.count(tensors), candidate.count(tensors)
        if contexts is None:
            contexts = 1 if lengths is None else len(lengths)
        # Only where no candidate input has a width: then nothing but the lengths tells how many there are.
        if rows is None and lengths is not None:
            rows = int(lengths.sum())
        rows = self._allowed(rows)
        if not contexts:
            raise Malformed("the request has no contexts")
        if lengths is None:
            if contexts != 1:
                raise Malformed(f"input '{CONTEXT_LENGTHS}' is missing; there are {contexts} contexts")
            context_row = np.zeros(rows, np.int64)
        else:
            context_row = np.repeat(np.arange(contexts), _segments(lengths, contexts, rows))
        return RankedTensors(context.read(tensors, contexts), candidate.read(tensors, rows), context_row)

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


def _segments(lengths: Array, contexts: int, rows: int) -> Array:
    """`context_lengths`, if each context has candidates and all candidates a context."""
    if len(lengths) != contexts:
        raise Malformed(
            f"input '{CONTEXT_LENGTHS}' has {len(lengths)} lengths; there are {contexts} contexts"
        )
    # A context without candidates would be work that max_request_rows does not bound.
    if lengths.min() < 1 or lengths.max() > rows:
        at = int(np.argmax((lengths < 1) | (lengths > rows)))
        raise Malformed(
            f"input '{CONTEXT_LENGTHS}': {int(lengths[at])} at position {at} is outside [1, {rows}]"
        )
    if (total := int(lengths.sum(dtype=np.int64))) != rows:
        raise Malformed(f"input '{CONTEXT_LENGTHS}' adds up to {total}; there are {rows} candidates")
    return lengths
