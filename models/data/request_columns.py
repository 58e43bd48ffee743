"""Reads data with its request features as additional columns.

The rows of a request are those with the same value in the schema's group column, in data order, wherever they
are: adjacent, shuffled, or in different files and splits. So the features are computed before any row is read
for training: one pass over the columns that they derive from, kept in memory or, if too large, in temporary
files.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from polyrec.models.data.growing_array import GrowingArrays
from polyrec.models.data.packed.reader import PackedReader
from polyrec.models.data.reader import DataReader
from polyrec.models.data.requests import Requests
from polyrec.models.data.split import stable_hash
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import F32, I64
from polyrec.models.schema.dedup.distinct import Jagged
from polyrec.models.schema.request.codes import NO_CONTEXT_VALUE, NO_VALUE, integer_codes, singles
from polyrec.models.schema.request.features import RequestFeatures
from polyrec.models.schema.request.rows import RequestRows, request_order
from polyrec.models.schema.schema import Categorical, Schema

MEMORY_BYTES = 2 << 30
ROWS = 1 << 18
"""Rows whose features are computed at once."""
GROUP, FEATURES = ".group", ".features"
"""Names of the request of each row and of the result beside the columns; no feature's name has a dot."""


class RequestReader:
    """A reader (see polyrec.models.data.reader.DataReader) that adds the request features of its rows."""

    def __init__(self, reader: DataReader, schema: Schema) -> None:
        self.path = reader.path
        self.columns = reader.columns
        self._reader = reader
        self._schema = schema
        self._names = tuple(r.name for r in schema.request)
        self._computed: F32 | None = None

    @property
    def rows_hint(self) -> int | None:
        return self._reader.rows_hint

    @property
    def malformed(self) -> int:
        return self._reader.malformed

    @property
    def notes(self) -> Sequence[str]:
        return self._reader.notes

    @property
    def shares_context(self) -> bool:
        """Whether `requests` reads contexts once per request."""
        return isinstance(self._reader, PackedReader) and self._reader.shares_context

    def fingerprint(self) -> str:
        return self._reader.fingerprint()

    def batches(self, columns: Sequence[str], rows: int = 65536) -> Iterator[pa.RecordBatch]:
        computed = [name for name in columns if name in self._names]
        if not computed:
            yield from self._reader.batches(columns, rows)
            return
        given = [name for name in columns if name not in self._names] or [self._schema.label.column]
        first = 0
        for data in self._reader.batches(given, rows):
            yield self._with_computed(data, first, computed).select(list(columns))
            first += data.num_rows

    def requests(self, columns: Sequence[str]) -> Iterator[Requests]:
        """Yields requests of packed data, like `PackedReader.requests`."""
        assert isinstance(self._reader, PackedReader)
        computed = [name for name in columns if name in self._names]
        first = 0
        for found in self._reader.requests([name for name in columns if name not in self._names]):
            rows = found.rows
            yield Requests(found.shared, self._with_computed(found.per_row, first, computed), found.lengths)
            first += rows

    def _with_computed(self, data: pa.RecordBatch, first: int, computed: Sequence[str]) -> pa.RecordBatch:
        if self._computed is None:
            self._computed = self._compute()
        values = self._computed[first : first + data.num_rows]
        return _appended(data, computed, values[:, [self._names.index(name) for name in computed]])

    def _compute(self) -> F32:
        """Computes the features of all rows, float32 [rows, features], in data order."""
        features = RequestFeatures(self._schema)
        store = GrowingArrays(MEMORY_BYTES)
        try:
            for data in self._reader.batches(columns_read(self._schema)):
                _append_inputs(store, features, self._schema, data)
            if not store.names:
                return np.empty((0, len(self._names)), np.float32)
            out = np.empty((store.names[GROUP][1][0], len(self._names)), np.float32)
            if store.folder is not None:
                out = np.memmap(store.folder / FEATURES, np.float32, "w+", shape=out.shape)
            _compute_all(features, store, out)
        except BaseException:
            store.remove()
            raise
        weakref.finalize(self, store.remove)
        return out


def columns_read(schema: Schema) -> tuple[str, ...]:
    """Returns the data columns from which request features are computed."""
    features = RequestFeatures(schema)
    names = (schema.group or "", *features.numbers, *(f.name for f in (*features.singles, *features.bags)))
    return tuple(dict.fromkeys(names))


def with_request_features(schema: Schema, data: pa.RecordBatch) -> pa.RecordBatch:
    """Adds request features that are not among the columns, computed from these rows alone.

    Without the schema's group column, all rows form one request.
    """
    names = tuple(r.name for r in schema.request)
    if not data.num_rows or set(names) <= set(data.schema.names):
        return data
    features = RequestFeatures(schema)
    store = GrowingArrays(MEMORY_BYTES)
    if schema.group not in data.schema.names:
        data_of = data.append_column(schema.group, pa.array(np.zeros(data.num_rows, np.int64)))
    else:
        data_of = data
    _append_inputs(store, features, schema, data_of)
    out = np.empty((data.num_rows, len(names)), np.float32)
    _compute_all(features, store, out)
    given = [name for name in data.schema.names if name not in names]
    return _appended(data.select(given), names, out)


def _appended(data: pa.RecordBatch, names: Sequence[str], values: F32) -> pa.RecordBatch:
    columns = [pa.array(column.astype(np.float64)) for column in values.T]
    return pa.RecordBatch.from_arrays([*data.columns, *columns], [*data.schema.names, *names])


def _append_inputs(
    store: GrowingArrays, features: RequestFeatures, schema: Schema, data: pa.RecordBatch
) -> None:
    store.append(GROUP, group_codes(schema.group or "", data.column(schema.group)))
    for name in features.numbers:
        column = data.column(name).cast(pa.float64())
        store.append(name, column.to_numpy(zero_copy_only=False))
    for f in features.singles:
        store.append(f.name, value_codes(data.column(f.name), _missing(f)))
    for f in features.bags:
        column = data.column(f.name)
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = value_codes(column.flatten(), _missing(f))
        if lengths.size and lengths.max() > f.max_length:
            at = np.arange(codes.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            codes, lengths = codes[at < f.max_length], np.minimum(lengths, f.max_length)
        store.append(f.name, codes)
        store.append(f"{f.name}.lengths", lengths)


def _compute_all(features: RequestFeatures, store: GrowingArrays, out: F32) -> None:
    """Computes the features of all stored rows into `out`, several requests at a time."""
    order, lengths = request_order(store.array(GROUP))
    codes: dict[str, I64] = {f.name: store.array(f.name) for f in features.singles}
    lists = {name: singles(codes[name]) for name in features.context if name in codes}
    for f in features.bags:
        sizes = store.array(f"{f.name}.lengths")
        lists[f.name] = Jagged(store.array(f.name), np.concatenate(([0], np.cumsum(sizes))))
    numbers = {name: store.array(name) for name in features.numbers}
    ends = np.cumsum(lengths)
    cuts = np.flatnonzero(np.diff((ends - lengths) // ROWS, prepend=-1, append=-1)).tolist()
    for start, end in pairwise(cuts):
        chosen = order[int(ends[start] - lengths[start]) : int(ends[end - 1])]
        matches = features.match(
            {name: codes[name][chosen] for name in features.candidate},
            {name: lists[name].take(chosen) for name in features.context},
        )
        numbers_of = {name: x[chosen] for name, x in numbers.items()}
        out[chosen] = features(RequestRows(lengths[start:end], numbers_of, matches))


def group_codes(name: str, column: pa.Array) -> I64:
    """Returns the request of each row, int64 [rows]: integers as they are, else a 64-bit hash. Raises
    DataError.
    """
    if column.null_count:
        raise DataError(f"group column '{name}': a value is missing, and a row without it has no request")
    if pt.is_integer(column.type):
        codes: I64 = column.to_numpy(zero_copy_only=False).astype(np.int64)
        return codes
    return stable_hash(pc.cast(column, pa.string())).view(np.int64)


def value_codes(column: pa.Array, missing: int) -> I64:
    """Returns codes that are equal where the ids are equal: integers as they are, strings as 64-bit
    hashes.
    """
    is_missing = column.is_null().to_numpy(zero_copy_only=False)
    if pt.is_integer(column.type):
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        return integer_codes(values, is_missing, missing)
    return np.where(is_missing, missing, stable_hash(column).view(np.int64))


def _missing(feature: Categorical) -> int:
    return NO_CONTEXT_VALUE if feature.role == "context" else NO_VALUE
