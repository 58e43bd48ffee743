"""Groups rows of data into requests: columns shared by a request's rows, and columns per row.

A new request begins wherever any shared column differs from the previous row, so sharing is exact for any
data. It pays off if requests have many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.schema.dedup.distinct import Column, Jagged, row_changes

MAX_ROWS = 65536
"""Maximum rows of a request; a longer one may be split, without loss."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Several requests.

    shared: one row per request. per_row: all rows, request by request.
    lengths: int64 [requests], rows per request, at least one.
    """

    shared: pa.RecordBatch
    per_row: pa.RecordBatch
    lengths: I64

    @property
    def rows(self) -> int:
        return int(self.per_row.num_rows)

    def exploded(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Returns plain rows, with shared columns repeated."""
        request: pa.Array | None = None
        arrays = []
        for name in columns:
            if name in self.per_row.schema.names:
                arrays.append(self.per_row.column(name))
            else:
                if request is None:
                    request = pa.array(np.repeat(np.arange(self.lengths.size), self.lengths))
                arrays.append(self.shared.column(name).take(request))
        return pa.RecordBatch.from_arrays(arrays, list(columns))

    def filter(self, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Requests:
        """Returns the rows where `wanted`, bool [rows], is True; requests without any such row are left
        out.
        """
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = np.add.reduceat(wanted, starts, dtype=np.int64) if starts.size else self.lengths
        kept = lengths > 0
        shared = self.shared if kept.all() else self.shared.filter(pa.array(kept))
        return Requests(shared, self.per_row.filter(pa.array(wanted)), lengths[kept])

    def pieces(self, rows: int) -> Iterator[Requests]:
        """Yields the requests in pieces of about `rows` rows, in order."""
        ends = np.cumsum(self.lengths)
        place = (ends - self.lengths) // rows
        cuts = np.flatnonzero(np.diff(place, prepend=-1, append=-1)).tolist()
        for start, end in pairwise(cuts):
            first = int(ends[start] - self.lengths[start])
            yield Requests(
                self.shared.slice(start, end - start),
                self.per_row.slice(first, int(ends[end - 1]) - first),
                self.lengths[start:end],
            )

    @staticmethod
    def concat(parts: Sequence[Requests]) -> Requests:
        """Concatenates requests, in order."""
        if len(parts) == 1:
            return parts[0]
        return Requests(
            concat_batches([p.shared for p in parts]),
            concat_batches([p.per_row for p in parts]),
            np.concatenate([p.lengths for p in parts]),
        )


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenates batches, which must have at least one row in total."""
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def rebatch(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows in batches of `rows`; the last may be shorter."""
    buffered: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while count + batch.num_rows - start >= rows:
            yield concat_batches([*buffered, batch.slice(start, rows - count)])
            start += rows - count
            buffered, count = [], 0
        if start < batch.num_rows:
            buffered.append(batch.slice(start))
            count += batch.num_rows - start
    if buffered:
        yield concat_batches(buffered)


def comparable_arrays(column: pa.Array) -> list[Column]:
    """Converts a column to arrays that differ between two rows exactly where it does, nulls included."""
    found: list[Column] = []
    if pt.is_list(column.type):
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
        found.append(Jagged(_codes(column.flatten()), offsets))
    else:
        found.append(_codes(column))
    if column.null_count and (pt.is_list(column.type) or pt.is_floating(column.type)):
        found.append(column.is_null().to_numpy(zero_copy_only=False))
    return found


def _codes(column: pa.Array) -> NDArray[Any]:
    if pt.is_floating(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if pt.is_integer(column.type) and not column.null_count:
        return np.asarray(column.to_numpy())
    codes = pc.fill_null(column.dictionary_encode().indices, -1)
    return np.asarray(codes.to_numpy(zero_copy_only=False))


def request_starts(data: pa.RecordBatch, shared: Sequence[str]) -> I64:
    """Returns the rows at which a shared column differs from the previous row, int64 [requests], row 0
    first.
    """
    columns = [c for name in shared for c in comparable_arrays(data.column(name))]
    return np.flatnonzero(row_changes(columns, data.num_rows))


def split_requests(batches: Iterable[pa.RecordBatch], shared: Sequence[str]) -> Iterator[Requests]:
    """Groups rows into requests; only requests of more than MAX_ROWS rows are split."""
    buffered: list[pa.RecordBatch] = []
    for batch in batches:
        data = concat_batches([*buffered, batch])
        starts = request_starts(data, shared)
        end = int(starts[-1])
        if end == 0 and data.num_rows >= MAX_ROWS:
            end = data.num_rows
        if end:
            yield _split_columns(data.slice(0, end), starts[starts < end], shared)
        buffered = [data.slice(end)] if end < data.num_rows else []
    if buffered:
        yield _split_columns(buffered[0], np.zeros(1, np.int64), shared)


def _split_columns(data: pa.RecordBatch, starts: I64, shared: Sequence[str]) -> Requests:
    per_row = [name for name in data.schema.names if name not in shared]
    return Requests(
        data.select(list(shared)).take(pa.array(starts)),
        data.select(per_row),
        np.diff(np.append(starts, data.num_rows)),
    )
