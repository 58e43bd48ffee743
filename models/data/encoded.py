"""Data encoded once, then drawn in any order: what shuffled training and evaluation read.

A reader's rows go through the encoder into compact arrays (ranks in 32 bits, one jagged array of
bags a role), in memory or, where they outgrow it, in memory-mapped files of a temporary folder. Any
set of rows comes back as a `Batch`.

Rows that follow one another with the same context share it: it is stored once, and a batch that holds
several of them carries it once. Packed data come that way; in plain data it is found by comparing each
row's encoded context with the one before, so what is shared is equal, whatever the schema claims.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from polyrec.models.data.growing_array import GrowingArrays
from polyrec.models.data.packed.reader import PackedReader
from polyrec.models.data.reader import Reader
from polyrec.models.data.requests import Requests, joined
from polyrec.models.data.split import I8, TEST, TRAIN, VALIDATION, Splitter, stable_hash
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import F32, I64, Batch, Block, take_bags
from polyrec.models.schema.distinct import changes
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.features import block_columns
from polyrec.models.schema.schema import ROLES, Role, Schema

I32 = NDArray[np.int32]
T = TypeVar("T")

MEMORY_BYTES = 2 << 30
ROWS = 65536
# Arrow hashes a vocabulary anew for each batch: large ones are met with larger batches.
ROWS_MOST = 1 << 20
SHARE_FROM = 2
"""Rows a context beyond which a batch shares contexts: with fewer, the index costs what sharing saves."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A block at rest: as polyrec.models.schema.batch.Block, with ranks in 32 bits."""

    dense: F32
    ranks: I32
    bag_values: I32
    bag_offsets: I64
    bags: int

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.dense, self.ranks, self.bag_values, self.bag_offsets))

    def take(self, rows: I64) -> Block:
        offsets = np.zeros(1, np.int64)
        values = np.empty(0, np.int64)
        if self.bags:
            which = (rows[:, None] * self.bags + np.arange(self.bags)).ravel()
            values, offsets = take_bags(cast(I64, self.bag_values), self.bag_offsets, which)
        return Block(
            np.take(self.dense, rows, axis=0),
            np.take(self.ranks, rows, axis=0).astype(np.int64),
            values.astype(np.int64, copy=False),
            offsets,
        )


class Encoded:
    """Encoded rows. Close it (or use `with`) to free its memory and its temporary files.

    label: float32 [rows], 1 for a click. split: int8 [rows], as polyrec.models.data.split.
    group: int64 [rows] or None; equal for rows of one request (the group column's own values if they
    are integers, a 64-bit hash of them otherwise).
    """

    def __init__(
        self,
        blocks: dict[Role, _Stored],
        label: F32,
        split: I8,
        group: I64 | None,
        starts: I64 | None,
        folder: Path | None,
    ) -> None:
        self.label = label
        self.split = split
        self.group = group
        self._blocks = blocks
        self._starts = starts
        self._remove = None if folder is None else _removal(self, folder)

    @property
    def rows(self) -> int:
        return int(self.label.size)

    @property
    def contexts(self) -> int:
        """How many contexts are stored: one a row where none is shared."""
        return self.rows if self._starts is None else self._starts.size - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, wherever they are."""
        arrays = (self.label, self.split, self.group, self._starts, *self._blocks.values())
        return sum(a.nbytes for a in arrays if a is not None)

    def batch(self, rows: I64) -> Batch:
        """rows: int64 [n], any order, repeats allowed -> a batch of n rows.

        Contexts are shared where there are more than SHARE_FROM rows to one, else the batch is plain.
        """
        context, candidate = self._blocks["context"], self._blocks["candidate"].take(rows)
        if self._starts is None:
            return Batch(context.take(rows), candidate)
        stored = np.searchsorted(self._starts, rows, side="right") - 1
        distinct, row = np.unique(stored, return_inverse=True)
        if rows.size <= SHARE_FROM * distinct.size:
            return Batch(context.take(stored), candidate)
        return Batch(context.take(distinct), candidate, row)

    def select(self, *splits: int) -> I64:
        """int64, the rows of the given splits (TRAIN, VALIDATION, TEST), in the order of the data."""
        return np.flatnonzero(np.isin(self.split, splits))

    def close(self) -> None:
        """Removes the temporary files; the rows cannot be used any more."""
        self._blocks = {}
        self.label = self.label[:0].copy()
        self.split = self.split[:0].copy()
        self.group = self._starts = None
        if self._remove is not None:
            self._remove()

    def __enter__(self) -> Encoded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _removal(owner: object, folder: Path) -> Callable[[], object]:
    return weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)


def encode(
    reader: Reader,
    encoder: Encoder,
    splitter: Splitter,
    which: Sequence[int] = (TRAIN, VALIDATION, TEST),
    memory_bytes: int = MEMORY_BYTES,
    progress: Callable[[int], object] | None = None,
    share: bool = True,
) -> Encoded:
    """Encodes the rows of the splits `which`, in one pass.

    Up to `memory_bytes` they stay in memory, beyond it they go to files in the temporary folder.
    `progress` is told the rows of each batch read. share: store contexts that repeat once, if the
    schema has a group; the numbers are the same either way.
    Raises DataError: nothing in the splits asked for, a group missing, a value that is refused.
    """
    schema = encoder.schema
    largest = max((v.size for v in encoder.vocabularies.values()), default=0)
    share = share and schema.group is not None and bool(schema.context.names)
    store = GrowingArrays(memory_bytes)
    try:
        for part in _parts(reader, schema, share, min(max(ROWS, largest // 2), ROWS_MOST)):
            if progress is not None:
                progress(part.rows)
            split = splitter(part.exploded(schema.split.columns))
            wanted = np.isin(split, which)
            if not wanted.any():
                continue
            if not wanted.all():
                part, split = part.filter(wanted), split[wanted]
            store.append("split", split)
            _append(store, encoder, part, share)
        if not store.names:
            raise DataError(f"{reader.path}: there are no rows to use")
        return _encoded(store, schema, share)
    except BaseException:
        store.remove()
        raise


def _parts(reader: Reader, schema: Schema, share: bool, rows: int) -> Iterator[Requests]:
    """The data, at least `rows` rows at a time; plain rows share no column with one another."""
    if share and isinstance(reader, PackedReader) and reader.shares_context:
        for requests in _gathered(reader.requests(schema.columns), rows, lambda r: r.rows):
            yield Requests.concat(requests)
        return
    nothing = pa.RecordBatch.from_arrays([], names=[])
    for batches in _gathered(reader.batches(schema.columns), rows, lambda b: b.num_rows):
        data = joined(batches)
        yield Requests(nothing, data, np.array([data.num_rows]))


def _gathered(parts: Iterable[T], rows: int, rows_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Parts put together until they have at least `rows` rows."""
    held: list[T] = []
    count = 0
    for part in parts:
        held.append(part)
        count += rows_of(part)
        if count >= rows:
            yield held
            held, count = [], 0
    if count:
        yield held


def _append(store: GrowingArrays, encoder: Encoder, part: Requests, share: bool) -> None:
    schema = encoder.schema
    requests = bool(part.shared.num_columns)
    context = encoder.arrow_block("context", part.shared if requests else part.own)
    if share:
        heads = np.flatnonzero(changes(block_columns(context), context.rows))
        lengths = part.lengths if requests else np.ones(context.rows, np.int64)
        context = context.take(heads)
        store.append("lengths", np.add.reduceat(lengths, heads).astype(np.int32))
    for role, block in (("context", context), ("candidate", encoder.arrow_block("candidate", part.own))):
        store.append(f"{role}.dense", block.dense)
        store.append(f"{role}.ranks", block.ranks.astype(np.int32))
        store.append(f"{role}.bag_values", block.bag_values.astype(np.int32))
        store.append(f"{role}.bag_lengths", np.diff(block.bag_offsets).astype(np.int32))
    label = schema.label
    names = [label.column] if schema.group is None else [label.column, schema.group]
    rows = part.exploded(names)
    clicks = rows.column(label.column).to_numpy(zero_copy_only=False) > label.positive_above
    store.append("label", clicks.astype(np.float32))
    if schema.group is not None:
        store.append("group", _groups(schema.group, rows.column(schema.group)))


def _encoded(store: GrowingArrays, schema: Schema, share: bool) -> Encoded:
    blocks: dict[Role, _Stored] = {}
    for role in ROLES:
        blocks[role] = _Stored(
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
    return Encoded(blocks, label, store.array("split"), group, starts, store.folder)


def _ends(store: GrowingArrays, lengths: str, name: str) -> I64:
    """The running sum of stored lengths, from 0, kept as `name`."""
    sizes = store.array(lengths)
    ends = store.zeros(name, sizes.size + 1)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _groups(name: str, column: pa.Array) -> I64:
    if column.null_count:
        raise DataError(f"group column '{name}': a value is missing, and a row without it has no request")
    if pt.is_integer(column.type):
        codes: I64 = column.to_numpy(zero_copy_only=False)
        return codes
    return stable_hash(pc.cast(column, pa.string())).view(np.int64)
