"""Encodes raw features as a batch: the only place where values become ranks and numbers are transformed.

Input is columns of a request (lists), of data (Arrow), or ids (the inference protocol); output is a `Block`
of model-ready numbers. Training, evaluation and serving share it, so that a model is served the features that
it was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from polyrec.models.data.request_columns import with_request_features
from polyrec.models.errors import DataError, FeatureError
from polyrec.models.memory import require_memory
from polyrec.models.schema.batch import F32, F64, I64, Batch, Block, take_bags
from polyrec.models.schema.dense_transform import DenseTransform, Standard
from polyrec.models.schema.id_columns import IdColumns, RangeColumns, RankTable, column_order
from polyrec.models.schema.schema import ROLES, Categorical, Role, RoleLayout, Schema
from polyrec.models.schema.vocabulary import NO_VALUES, Value, Vocabulary


class Encoder:
    """A schema with its vocabularies and statistics: everything needed to encode a request."""

    def __init__(
        self,
        schema: Schema,
        vocabularies: Mapping[str, Vocabulary],
        standards: Mapping[str, Standard],
    ) -> None:
        self.schema = schema
        self.vocabularies = dict(vocabularies)
        self.standards = dict(standards)
        self._names = {role: schema.layout(role).names for role in ROLES}
        self._transform = {
            "context": DenseTransform(schema.context.dense, standards),
            "candidate": DenseTransform(schema.candidate.dense, standards),
        }
        context, candidate = schema.context, schema.candidate
        self._both = DenseTransform((*context.dense, *candidate.dense), standards)
        ranks = RankTable(self.vocabularies)
        self._ids = {role: IdColumns(schema.layout(role).singles, ranks) for role in ROLES}
        self._integers = {role: RangeColumns(schema.layout(role).singles, ranks) for role in ROLES}
        self._both_ids = IdColumns((*context.singles, *candidate.singles), ranks)
        dense, singles = schema.tensor_columns()
        self._dense_order = column_order(dense, [d.name for d in (*context.supplied, *candidate.supplied)])
        self._singles_order = column_order(singles, [f.name for f in (*context.singles, *candidate.singles)])

    def prepare(self) -> None:
        """Builds the lookup dictionaries now, so that the first request does not wait for them.

        Raises RuntimeUnavailable if there is not enough memory for them.
        """
        require_memory(sum(v.unbuilt_bytes for v in self.vocabularies.values()), "the values of the tables")
        for vocabulary in self.vocabularies.values():
            vocabulary.rank_by_value()

    def with_added(self, added: Mapping[str, Mapping[Value, int]]) -> Encoder:
        """Returns an encoder for the same rows, with these values assigned to reserved ids.

        added: table -> value -> id. Tables left out have no added values.
        """
        other = copy(self)
        other.vocabularies = {t: v.with_added(added.get(t, NO_VALUES)) for t, v in self.vocabularies.items()}
        return other

    def vocabulary(self, feature: Categorical) -> Vocabulary:
        return self.vocabularies[feature.table_name]

    def block(
        self, role: Role, columns: Mapping[str, Sequence[Any] | None], rows: int, request: F64 | None = None
    ) -> Block:
        """Encodes columns of a request as the block of one role.

        columns: feature name -> `rows` raw values (lists of values for a multi-valued feature); a feature
        left out or None is missing in every row. The request parser has checked the types.
        request: for the candidate, the features computed from the request
        (models/schema/request/features.py); None if missing.
        Raises FeatureError: a wrong number of values, a value without a row, a number that is not finite.
        """
        layout = self.schema.layout(role)
        for name in self._names[role]:
            column = columns.get(name)
            if column is not None and len(column) != rows:
                raise FeatureError(name, f"{len(column)} values for {rows} rows")
        # stored [features, rows], so that each column is written contiguously
        raw = np.full((len(layout.dense), rows), np.nan)
        if request is not None:
            raw[len(layout.supplied) :] = request.T
        self._numbers(layout, columns, raw)
        ranks = self._single_ranks(role, columns, rows)
        bags = [self._bags(f, columns.get(f.name), rows) for f in layout.bags]
        return Block(self._transform[role](raw.T), ranks, *interleave(bags))

    def _numbers(self, layout: RoleLayout, columns: Mapping[str, Sequence[Any] | None], raw: F64) -> None:
        """Writes the dense features of a request into their rows of `raw` [dense features, rows].

        Rows of features left out stay unchanged. Raises FeatureError for an integer beyond float64.
        """
        given = {i: c for i, d in enumerate(layout.supplied) if (c := columns.get(d.name)) is not None}
        if not given:
            return
        try:
            # one conversion for all columns: each takes several microseconds, as long as converting a hundred
            # numbers
            raw[list(given)] = np.array(list(given.values()), np.float64)
        except OverflowError:
            for i, column in given.items():
                try:
                    raw[i] = np.array(column, np.float64)
                except OverflowError:
                    raise FeatureError(layout.supplied[i].name, "a value is too large for a number") from None

    def _single_ranks(self, role: Role, columns: Mapping[str, Sequence[Any] | None], rows: int) -> I64:
        """Encodes the single-valued features of one role, int64 [rows, features]. Raises as `block`."""
        singles, integers = self.schema.layout(role).singles, self._integers[role]
        ranks = np.empty((rows, len(singles)), np.int64)
        others: Sequence[int] = range(len(singles))
        if integers.places and (at_once := integers(columns, rows)) is not None:
            ranks[:, integers.places] = at_once.T
            others = integers.others
        for i in others:
            f = singles[i]
            values = columns.get(f.name)
            ranks[:, i] = self.vocabulary(f).encode(f.name, [None] * rows if values is None else values)
        return ranks

    def _bags(
        self, f: Categorical, column: Sequence[Sequence[Any] | None] | None, rows: int
    ) -> tuple[I64, I64]:
        lists = [()] * rows if column is None else [v or () for v in column]
        lengths = np.fromiter(map(len, lists), np.int64, count=rows)
        check_longest(f, lengths)
        flat = [value for values in lists for value in values]
        return self.vocabulary(f).encode(f.name, flat), lengths

    def from_arrow(self, data: pa.RecordBatch) -> Batch:
        """Encodes rows of data as a plain batch. Lists longer than max_length are truncated.

        Request features without a column are computed from these rows.
        """
        data = with_request_features(self.schema, data)
        return Batch(self.arrow_block("context", data), self.arrow_block("candidate", data))

    def arrow_block(self, role: Role, data: pa.RecordBatch) -> Block:
        """Encodes the columns of one role like `from_arrow`."""
        layout = self.schema.layout(role)
        raw = np.empty((data.num_rows, len(layout.dense)))
        for i, d in enumerate(layout.dense):
            raw[:, i] = data.column(d.name).cast(pa.float64()).to_numpy(zero_copy_only=False)
        ranks = np.empty((data.num_rows, len(layout.singles)), np.int64)
        for i, f in enumerate(layout.singles):
            ranks[:, i] = self._arrow_ranks(f, data.column(f.name))
        bags = [self._arrow_bags(f, data.column(f.name)) for f in layout.bags]
        return Block(self._transform[role](raw), ranks, *interleave(bags))

    def _arrow_bags(self, f: Categorical, column: pa.Array) -> tuple[I64, I64]:
        flat = column.flatten()
        values = self._arrow_ranks(f, flat)
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        kept = np.minimum(lengths.astype(np.int64), f.max_length)
        if kept.sum() != values.size:
            starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
            values = values[np.arange(kept.sum()) + np.repeat(starts - (np.cumsum(kept) - kept), kept)]
        return values, kept

    def _arrow_ranks(self, f: Categorical, values: pa.Array) -> I64:
        ranks = self.vocabulary(f).encode_arrow(values)
        if ranks.size and ranks.min() < 0:
            value = values[int(np.argmax(ranks < 0))].as_py()
            what = "a value is missing" if value is None else f"value {value!r:.64} is unknown"
            raise DataError(f"feature '{f.name}': {what}, and the table refuses it (oov: refuse)")
        return ranks

    def from_ids(
        self,
        dense: F32,
        sparse: I64,
        bags: Mapping[str, tuple[I64, I64]],
        request: F64 | None = None,
    ) -> Batch:
        """Encodes ids of the inference protocol as a plain batch.

        dense: float32 [rows, dense features], sparse: int64 [rows, single-valued features], both in the order
        of the schema file and without request features.
        bags: feature -> (values int64 [total], lengths int64 [rows]).
        request: as for `block`.
        Raises FeatureError: an id out of range, lengths that do not add up, a non-finite number.
        """
        context, candidate = self.schema.context, self.schema.candidate
        # both roles at once: an array operation takes about as long for 13 columns as for 26
        numbers = self._both(
            _with_request(dense[:, self._dense_order], len(candidate.request), request),
            len(self.schema.dense),
        )
        ranks = self._both_ids(sparse[:, self._singles_order])
        d, n = len(context.dense), len(context.singles)
        return Batch(
            self._block(context, np.ascontiguousarray(numbers[:, :d]), ranks[:, :n], bags),
            self._block(candidate, np.ascontiguousarray(numbers[:, d:]), ranks[:, n:], bags),
        )

    def ids_block(
        self,
        role: Role,
        raw: F32,
        ids: I64,
        bags: Mapping[str, tuple[I64, I64]],
        request: F64 | None = None,
    ) -> Block:
        """Encodes ids of one role as its block.

        raw: float32 [rows, the role's dense features], ids: int64 [rows, its single-valued features], both in
        the order of the schema file and without request features.
        bags, request: as for `from_ids`; bags may contain more than the role's features.
        Raises as `from_ids`.
        """
        layout = self.schema.layout(role)
        added = len(layout.request) if role == "candidate" else 0
        numbers = self._transform[role](_with_request(raw, added, request), raw.shape[1])
        return self._block(layout, numbers, self._ids[role](ids), bags)

    def _block(
        self, layout: RoleLayout, dense: F32, ranks: I64, bags: Mapping[str, tuple[I64, I64]]
    ) -> Block:
        """Builds the block of one role, converting the ids of its bags to ranks. Raises FeatureError."""
        pairs = []
        for f in layout.bags:
            values, lengths = bags[f.name]
            check_lengths(f, values, lengths, ranks.shape[0])
            pairs.append((self.vocabulary(f).ranks_of_ids(f.name, values), lengths))
        return Block(dense, ranks, *interleave(pairs))

    def unknown(self, batch: Batch) -> dict[str, int]:
        """Counts out-of-vocabulary lookups of a batch by feature, omitting features without any."""
        return self.unknown_of("context", batch.context) | self.unknown_of("candidate", batch.candidate)

    def unknown_of(self, role: Role, block: Block) -> dict[str, int]:
        """Counts out-of-vocabulary lookups of one role's block, like `unknown`."""
        layout, counts = self.schema.layout(role), dict[str, int]()
        if layout.singles:
            oov = np.array([self.vocabulary(f).oov_rank for f in layout.singles])
            hits = (block.ranks == oov).sum(axis=0)
            counts |= {f.name: int(n) for f, n in zip(layout.singles, hits, strict=True) if n}
        for i, f in enumerate(layout.bags):
            values = block.bag_values
            if len(layout.bags) > 1:
                which = np.arange(i, block.bag_offsets.size - 1, len(layout.bags))
                values, _ = take_bags(block.bag_values, block.bag_offsets, which)
            if n := int((values == self.vocabulary(f).oov_rank).sum()):
                counts[f.name] = n
        return counts


def _with_request(raw: F32, added: int, request: F64 | None) -> F32 | F64:
    """Appends `added` request features to raw numbers, NaN if `request` is None."""
    if not added:
        return raw
    return np.hstack((raw, np.full((raw.shape[0], added), np.nan) if request is None else request))


def check_longest(f: Categorical, lengths: I64) -> None:
    """Raises FeatureError if a list has more than `max_length` values."""
    if lengths.size and lengths.max() > f.max_length:
        row = int(lengths.argmax())
        raise FeatureError(f.name, f"{int(lengths[row])} values exceed max_length {f.max_length} (row {row})")


def check_lengths(f: Categorical, values: I64, lengths: I64, rows: int) -> None:
    """Checks the list lengths of a tensor [rows]. Raises FeatureError."""
    if lengths.shape != (rows,):
        raise FeatureError(f.name, f"{lengths.size} lengths for {rows} rows")
    if rows and (lengths.min() < 0 or lengths.max() > f.max_length):
        row = int(np.argmax((lengths < 0) | (lengths > f.max_length)))
        raise FeatureError(f.name, f"length {int(lengths[row])} is outside [0, {f.max_length}] (row {row})")
    if int(lengths.sum()) != values.size:
        raise FeatureError(f.name, f"lengths add up to {int(lengths.sum())}, values are {values.size}")


def interleave(bags: Sequence[tuple[I64, I64]]) -> tuple[I64, I64]:
    """Merges per-feature (values, lengths [rows]) into one jagged array, row by row, feature by feature."""
    if not bags:
        return np.empty(0, np.int64), np.zeros(1, np.int64)
    if len(bags) == 1:
        values, lengths = bags[0]
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return values, offsets
    rows = bags[0][1].size
    values = np.concatenate([v for v, _ in bags])
    if rows == 1:
        ends = accumulate((v.size for v, _ in bags), initial=0)
        return values, np.fromiter(ends, np.int64, count=len(bags) + 1)
    offsets = np.zeros(rows * len(bags) + 1, np.int64)
    np.cumsum(np.concatenate([n for _, n in bags]), out=offsets[1:])
    which = (np.arange(rows)[:, None] + np.arange(len(bags)) * rows).ravel()
    return take_bags(values, offsets, which)
