"""Encodes data once, so that training and evaluation can read rows in any order.

A reader's rows go through the encoder into compact arrays (ranks in 32 bits if all tables' ranks fit, one
jagged array of bags per role). These are in memory or, if too large, in memory-mapped files of a temporary
folder. Any set of rows can be read back as a `Batch`.

Consecutive rows with the same context share it: it is stored once, and a batch with several of these rows
contains it once. Packed data declare shared contexts. In plain data each row's encoded context is compared
with the previous one, so that only equal contexts are shared, whatever the schema says.
"""

from __future__ import annotations

import shutil
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from polyrec.models.data.altered_values import AlteredValues
from polyrec.models.data.growing_array import GrowingArrays
from polyrec.models.data.packed.reader import PackedReader
from polyrec.models.data.reader import DataReader
from polyrec.models.data.remote.path import DataPath
from polyrec.models.data.request_columns import RequestReader, group_codes
from polyrec.models.data.requests import Requests, concat_batches
from polyrec.models.data.split import I8, TEST, TRAIN, VALIDATION, Splitter
from polyrec.models.errors import DataError
from polyrec.models.progress import RowsDone, ignore_rows
from polyrec.models.schema.batch import F32, I64, Batch, Block, index_type, take_bags
from polyrec.models.schema.dedup.columns import block_columns
from polyrec.models.schema.dedup.distinct import row_changes
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES, Role, Schema

Ranks = NDArray[np.int32] | I64
T = TypeVar("T")

MEMORY_BYTES = 2 << 30
ROWS = 65536
# Arrow hashes a vocabulary again for each batch, so large vocabularies get larger batches.
MAX_ROWS = 1 << 20
SHARE_FROM = 2
"""Rows per context above which a batch shares contexts: below, the index costs as much as sharing saves."""


@dataclass(frozen=True, slots=True)
class _StoredBlock:
    """A stored block, like polyrec.models.schema.batch.Block but with smaller ranks."""

    dense: F32
    ranks: Ranks
    bag_values: Ranks
    bag_offsets: I64
    bags: int

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.dense, self.ranks, self.bag_values, self.bag_offsets))

    def take(self, rows: I64) -> Block:
        """Returns the rows `rows`, int64 [n], in this order."""
        offsets = np.zeros(1, np.int64)
        values = np.empty(0, np.int64)
        if self.bags:
            which = (rows[:, None] * self.bags + np.arange(self.bags)).ravel()
            values, offsets = take_bags(cast(I64, self.bag_values), self.bag_offsets, which)
        return Block(
            np.take(self.dense, rows, axis=0),
            np.take(self.ranks, rows, axis=0).astype(np.int64, copy=False),
            values.astype(np.int64, copy=False),
            offsets,
        )


class EncodedRows:
    """Encoded rows. Close it, or use it in a `with` block, to free its memory and temporary files.

    label: float32 [rows], 1 for a click. split: int8 [rows], as in polyrec.models.data.split.
    group: int64 [rows] or None; equal for rows of one request (the group column's values if they are
    integers, else their 64-bit hashes).
    altered: counts of values that were replaced.
    """

    def __init__(
        self,
        blocks: dict[Role, _StoredBlock],
        label: F32,
        split: I8,
        group: I64 | None,
        starts: I64 | None,
        folder: Path | None,
        altered: AlteredValues,
    ) -> None:
        self.label = label
        self.split = split
        self.group = group
        self.altered = altered
        self._blocks = blocks
        self._starts = starts
        self._remove = None if folder is None else _removal(self, folder)

    @property
    def rows(self) -> int:
        return int(self.label.size)

    @property
    def contexts(self) -> int:
        """Number of stored contexts; one per row if none is shared."""
        return self.rows if self._starts is None else self._starts.size - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, in memory or in files."""
        arrays = (self.label, self.split, self.group, self._starts, *self._blocks.values())
        return sum(a.nbytes for a in arrays if a is not None)

    def batch(self, rows: I64) -> Batch:
        """Returns a batch of the given rows. rows: int64 [n], in any order, repeats allowed.

        Contexts are shared if there are more than SHARE_FROM rows per context; otherwise the batch is plain.
        """
        context, candidate = self._blocks["context"], self._blocks["candidate"].take(rows)
        if self._starts is None:
            return Batch(context.take(rows), candidate)
        stored = np.searchsorted(self._starts, rows, side="right") - 1
        distinct, row = np.unique(stored, return_inverse=True)
        if rows.size <= SHARE_FROM * distinct.size:
            return Batch(context.take(stored), candidate)
        return Batch(context.take(distinct), candidate, row)

    def blocks(self, role: Role, rows: int = ROWS) -> Iterator[Block]:
        """Yields the stored rows of a role in data order, a shared context once, `rows` at a time."""
        stored = self._blocks[role]
        for start in range(0, stored.dense.shape[0], rows):
            yield stored.take(np.arange(start, min(start + rows, stored.dense.shape[0])))

    def select(self, *splits: int) -> I64:
        """Returns the rows of the given splits (TRAIN, VALIDATION, TEST), int64, in data order."""
        return np.flatnonzero(np.isin(self.split, splits))

    def close(self) -> None:
        """Removes the temporary files; the rows cannot be used afterwards."""
        self._blocks = {}
        self.label = self.label[:0].copy()
        self.split = self.split[:0].copy()
        self.group = self._starts = None
        if self._remove is not None:
            self._remove()

    def __enter__(self) -> EncodedRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _removal(owner: object, folder: Path) -> Callable[[], object]:
    return weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)


def encode(
    reader: DataReader,
    encoder: Encoder,
    splitter: Splitter,
    which: Sequence[int] = (TRAIN, VALIDATION, TEST),
    memory_bytes: int = MEMORY_BYTES,
    progress: RowsDone = ignore_rows,
    share: bool = True,
) -> EncodedRows:
    """Encodes the rows of the splits `which`, in one pass.

    memory_bytes: limit up to which rows stay in memory; beyond it they go to files in the temporary folder.
    progress: called with the number of rows of each batch read.
    share: stores repeated contexts once, if the schema has a group; batches have the same values either way.
    Raises DataError: no rows in these splits, a missing group, a value without a row.
    """
    schema = encoder.schema
    largest = max((v.size for v in encoder.vocabularies.values()), default=0)
    share = share and schema.group is not None and bool(schema.context.names)
    store, altered = GrowingArrays(memory_bytes), AlteredValues()
    try:
        for part in _parts(reader, schema, share, min(max(ROWS, largest // 2), MAX_ROWS)):
            progress(part.rows)
            split = splitter(part.exploded(schema.split.columns))
            wanted = np.isin(split, which)
            if not wanted.any():
                continue
            if not wanted.all():
                part, split = part.filter(wanted), split[wanted]
            store.append("split", split)
            _append(store, encoder, part, share, altered, reader.path)
        if not store.names:
            raise DataError(f"{reader.path}: there are no rows to use")
        return _encoded(store, schema, share, altered)
    except BaseException:
        store.remove()
        raise


def encode_windows(
    reader: DataReader,
    encoder: Encoder,
    splitter: Splitter,
    which: Sequence[int],
    rows: int,
    first: int = 0,
) -> Iterator[EncodedRows]:
    """Encodes the rows of the splits `which` in windows of about `rows` rows, one at a time in memory.

    A window ends between requests, so that each request is in one window, unless it alone has more than
    `rows` rows. All passes have the same windows. first: number of the first window to encode.
    Raises DataError: a missing group, a value without a row.
    """
    schema = encoder.schema
    share = schema.group is not None and bool(schema.context.names)
    for number, part in enumerate(_windows(reader, schema, splitter, which, share, rows)):
        if number < first:
            continue
        store, altered = GrowingArrays(sys.maxsize), AlteredValues()
        store.append("split", splitter(part.exploded(schema.split.columns)))
        _append(store, encoder, part, share, altered, reader.path)
        yield _encoded(store, schema, share, altered)


def _windows(
    reader: DataReader, schema: Schema, splitter: Splitter, which: Sequence[int], share: bool, rows: int
) -> Iterator[Requests]:
    kept: list[Requests] = []
    for part in _parts(reader, schema, share, min(rows, ROWS)):
        wanted = np.isin(splitter(part.exploded(schema.split.columns)), which)
        if not wanted.any():
            continue
        kept.append(part if wanted.all() else part.filter(wanted))
        while sum(p.rows for p in kept) > rows:
            whole = _joined(kept)
            inside = np.arange(whole.rows) < _window_end(schema, whole, rows)
            yield whole.filter(inside)
            kept = [whole.filter(~inside)]
    if kept:
        yield _joined(kept)


def _window_end(schema: Schema, part: Requests, rows: int) -> int:
    """Returns the first row of the request that contains row number `rows`; `rows` if that is row 0."""
    if schema.group is None:
        return rows
    group = group_codes(schema.group, part.exploded([schema.group]).column(0))[: rows + 1]
    starts = np.flatnonzero(group[1:] != group[:-1]) + 1
    return int(starts[-1]) if starts.size else rows


def _joined(parts: Sequence[Requests]) -> Requests:
    """Concatenates parts, including parts without shared columns."""
    if parts[0].shared.num_columns:
        return Requests.concat(parts)
    data = concat_batches([part.per_row for part in parts])
    return Requests(parts[0].shared, data, np.array([data.num_rows]))


def _parts(reader: DataReader, schema: Schema, share: bool, rows: int) -> Iterator[Requests]:
    """Yields the data, at least `rows` rows at a time; plain rows share no columns."""
    columns = schema.encoded_columns
    if share and isinstance(reader, PackedReader | RequestReader) and reader.shares_context:
        for requests in _batched(reader.requests(columns), rows, lambda r: r.rows):
            yield Requests.concat(requests)
        return
    nothing = pa.RecordBatch.from_arrays([], names=[])
    for batches in _batched(reader.batches(columns), rows, lambda b: b.num_rows):
        data = concat_batches(batches)
        yield Requests(nothing, data, np.array([data.num_rows]))


def _batched(parts: Iterable[T], rows: int, rows_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Collects parts into lists of at least `rows` rows."""
    buffered: list[T] = []
    count = 0
    for part in parts:
        buffered.append(part)
        count += rows_of(part)
        if count >= rows:
            yield buffered
            buffered, count = [], 0
    if count:
        yield buffered


def _append(
    store: GrowingArrays,
    encoder: Encoder,
    part: Requests,
    share: bool,
    altered: AlteredValues,
    path: DataPath,
) -> None:
    schema = encoder.schema
    ranks = index_type(max((v.rows for v in encoder.vocabularies.values()), default=0))
    requests = bool(part.shared.num_columns)
    shared = part.shared if requests else part.per_row
    try:
        context = encoder.arrow_block("context", shared)
        candidate = encoder.arrow_block("candidate", part.per_row)
        if schema.group is not None:
            column = part.exploded([schema.group]).column(schema.group)
            store.append("group", group_codes(schema.group, column))
    except DataError as e:
        raise DataError(f"{path}: {e}") from None
    altered.add(encoder, "context", shared, context)
    altered.add(encoder, "candidate", part.per_row, candidate)
    if share:
        heads = np.flatnonzero(row_changes(block_columns(context), context.rows))
        lengths = part.lengths if requests else np.ones(context.rows, np.int64)
        context = context.take(heads)
        store.append("lengths", np.add.reduceat(lengths, heads).astype(np.int32))
    for role, block in (("context", context), ("candidate", candidate)):
        store.append(f"{role}.dense", block.dense)
        store.append(f"{role}.ranks", block.ranks.astype(ranks))
        store.append(f"{role}.bag_values", block.bag_values.astype(ranks))
        store.append(f"{role}.bag_lengths", np.diff(block.bag_offsets).astype(np.int32))
    label = schema.label
    clicks = (
        part.exploded([label.column]).column(label.column).to_numpy(zero_copy_only=False)
        > label.positive_above
    )
    store.append("label", clicks.astype(np.float32))


def _encoded(store: GrowingArrays, schema: Schema, share: bool, altered: AlteredValues) -> EncodedRows:
    blocks: dict[Role, _StoredBlock] = {}
    for role in ROLES:
        blocks[role] = _StoredBlock(
            store.array(f"{role}.dense"),
            store.array(f"{role}.ranks"),
            store.array(f"{role}.bag_values"),
            _ends(store, f"{role}.bag_lengths", f"{role}.bag_offsets"),
            len(schema.layout(role).bags),
        )
    label = store.array("label")
    starts = _ends(store, "lengths", "starts") if share else None
    if starts is not None and starts.size - 1 == label.size:
        starts = None
    group = None if schema.group is None else store.array("group")
    return EncodedRows(blocks, label, store.array("split"), group, starts, store.folder, altered)


def _ends(store: GrowingArrays, lengths: str, name: str) -> I64:
    """Returns the running sum of stored lengths, from 0, stored as `name`."""
    sizes = store.array(lengths)
    ends = store.zeros(name, sizes.size + 1)
    np.cumsum(sizes, out=ends[1:])
    return ends
