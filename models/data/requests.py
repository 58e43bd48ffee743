"""Rows of data as requests: what is shared by a request's rows, and what each row has of its own.

Where a request begins is read from the data, never assumed: a new one begins wherever any column that
is to be shared differs from the row before. So sharing is exact for any data, and pays where requests
have many rows.
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
from polyrec.models.schema.distinct import Column, Jagged, changes

ROWS_MOST = 65536
"""A request of more rows may be cut: its parts share nothing with one another, and nothing is lost."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Some requests. shared: one row a request. own: all rows, request by request. lengths: int64
    [requests], rows of each, at least one."""

    shared: pa.RecordBatch
    own: pa.RecordBatch
    lengths: I64

    @property
    def rows(self) -> int:
        return int(self.own.num_rows)

    def exploded(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Plain rows: what is shared repeated."""
        request: pa.Array | None = None
        arrays = []
        for name in columns:
            if name in self.own.schema.names:
                arrays.append(self.own.column(name))
            else:
                if request is None:
                    request = pa.array(np.repeat(np.arange(self.lengths.size), self.lengths))
                arrays.append(self.shared.column(name).take(request))
        return pa.RecordBatch.from_arrays(arrays, list(columns))

    def filter(self, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Requests:
        """Some rows. wanted: bool [rows]; requests of which no row is wanted are left out."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = np.add.reduceat(wanted, starts, dtype=np.int64) if starts.size else self.lengths
        kept = lengths > 0
        shared = self.shared if kept.all() else self.shared.filter(pa.array(kept))
        return Requests(shared, self.own.filter(pa.array(wanted)), lengths[kept])

    def pieces(self, rows: int) -> Iterator[Requests]:
        """The same requests in pieces of about `rows` rows, in order."""
        ends = np.cumsum(self.lengths)
        place = (ends - self.lengths) // rows
        cuts = np.flatnonzero(np.diff(place, prepend=-1, append=-1)).tolist()
        for start, end in pairwise(cuts):
            first = int(ends[start] - self.lengths[start])
            yield Requests(
                self.shared.slice(start, end - start),
                self.own.slice(first, int(ends[end - 1]) - first),
                self.lengths[start:end],
            )

    @staticmethod
    def concat(parts: Sequence[Requests]) -> Requests:
        """All requests, in order."""
        if len(parts) == 1:
            return parts[0]
        return Requests(
            joined([p.shared for p in parts]),
            joined([p.own for p in parts]),
            np.concatenate([p.lengths for p in parts]),
        )


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of at least one row in all, as one batch."""
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def rebatched(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows, `rows` at a time; the last batch may be shorter."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while count + batch.num_rows - start >= rows:
            yield joined([*held, batch.slice(start, rows - count)])
            start += rows - count
            held, count = [], 0
        if start < batch.num_rows:
            held.append(batch.slice(start))
            count += batch.num_rows - start
    if held:
        yield joined(held)


def comparable(column: pa.Array) -> list[Column]:
    """A column as arrays that differ between two rows exactly where it does, missing values included."""
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


def starts_of(data: pa.RecordBatch, shared: Sequence[str]) -> I64:
    """int64 [requests]: the rows at which a column of `shared` differs from the row before; row 0 first."""
    columns = [c for name in shared for c in comparable(data.column(name))]
    return np.flatnonzero(changes(columns, data.num_rows))


def requests_of(batches: Iterable[pa.RecordBatch], shared: Sequence[str]) -> Iterator[Requests]:
    """Rows -> their requests, none cut in two unless it has more than ROWS_MOST rows."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        data = joined([*held, batch])
        starts = starts_of(data, shared)
        end = int(starts[-1])
        if end == 0 and data.num_rows >= ROWS_MOST:
            end = data.num_rows
        if end:
            yield _of(data.slice(0, end), starts[starts < end], shared)
        held = [data.slice(end)] if end < data.num_rows else []
    if held:
        yield _of(held[0], np.zeros(1, np.int64), shared)


def _of(data: pa.RecordBatch, starts: I64, shared: Sequence[str]) -> Requests:
    own = [name for name in data.schema.names if name not in shared]
    return Requests(
        data.select(list(shared)).take(pa.array(starts)),
        data.select(own),
        np.diff(np.append(starts, data.num_rows)),
    )
