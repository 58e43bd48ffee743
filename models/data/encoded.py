"""Data encoded once, then drawn in any order: what shuffled training and evaluation read.

A reader's rows go through the encoder into compact arrays (ranks in 32 bits, one jagged array of
bags a role), in memory or, where they outgrow it, in memory-mapped files of a temporary folder. Any
set of rows comes back as a `Batch`.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from models.batch import F32, I64, Batch, Block, take_bags
from models.data.reader import Reader
from models.data.split import I8, TEST, TRAIN, VALIDATION, Splitter, stable_hash
from models.encoder import Encoder
from models.errors import DataError
from models.schema import ROLES, Role

I32 = NDArray[np.int32]

MEMORY_BYTES = 2 << 30
ROWS = 65536
# Arrow hashes a vocabulary anew for each batch: large ones are met with larger batches.
ROWS_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class _Stored:
    """A block at rest: as models.batch.Block, with ranks in 32 bits."""

    dense: F32
    ranks: I32
    bag_values: I32
    bag_offsets: I64
    bags: int

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

    label: float32 [rows], 1 for a click. split: int8 [rows], as models.data.split.
    group: int64 [rows] or None; equal for rows of one request (the group column's own values if they
    are integers, a 64-bit hash of them otherwise).
    """

    def __init__(
        self,
        blocks: dict[Role, _Stored],
        label: F32,
        split: I8,
        group: I64 | None,
        folder: Path | None,
    ) -> None:
        self.label = label
        self.split = split
        self.group = group
        self._blocks = blocks
        self._remove = None if folder is None else _removal(self, folder)

    @property
    def rows(self) -> int:
        return int(self.label.size)

    def batch(self, rows: I64) -> Batch:
        """rows: int64 [n], any order, repeats allowed -> a plain batch of n rows."""
        return Batch(self._blocks["context"].take(rows), self._blocks["candidate"].take(rows))

    def select(self, *splits: int) -> I64:
        """int64, the rows of the given splits (TRAIN, VALIDATION, TEST), in the order of the data."""
        return np.flatnonzero(np.isin(self.split, splits))

    def close(self) -> None:
        """Removes the temporary files; the rows cannot be used any more."""
        self._blocks = {}
        self.label = self.label[:0].copy()
        self.split = self.split[:0].copy()
        self.group = None
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
) -> Encoded:
    """Encodes the rows of the splits `which`, in one pass.

    Up to `memory_bytes` they stay in memory, beyond it they go to files in the temporary folder.
    `progress` is told the rows of each batch read.
    Raises DataError: nothing in the splits asked for, a group missing, a value that is refused.
    """
    schema = encoder.schema
    label = schema.label
    largest = max((v.size for v in encoder.vocabularies.values()), default=0)
    store = _Store(memory_bytes)
    try:
        rows = min(max(ROWS, largest // 2), ROWS_MOST)
        for data in _gathered(reader.batches(schema.columns), rows):
            if progress is not None:
                progress(data.num_rows)
            split = splitter(data)
            wanted = np.isin(split, which)
            if not wanted.all():
                data, split = data.filter(pa.array(wanted)), split[wanted]
            if not data.num_rows:
                continue
            batch = encoder.from_arrow(data)
            for role in ROLES:
                block = batch.context if role == "context" else batch.candidate
                store.append(f"{role}.dense", block.dense)
                store.append(f"{role}.ranks", block.ranks.astype(np.int32))
                store.append(f"{role}.bag_values", block.bag_values.astype(np.int32))
                store.append(f"{role}.bag_lengths", np.diff(block.bag_offsets).astype(np.int32))
            clicks = data.column(label.column).to_numpy(zero_copy_only=False) > label.positive_above
            store.append("label", clicks.astype(np.float32))
            store.append("split", split)
            if schema.group is not None:
                store.append("group", _groups(schema.group, data.column(schema.group)))
        if not store.names:
            raise DataError(f"{reader.path}: there are no rows to use")
        blocks: dict[Role, _Stored] = {}
        for role in ROLES:
            lengths = store.array(f"{role}.bag_lengths")
            offsets = store.zeros(f"{role}.bag_offsets", lengths.size + 1)
            np.cumsum(lengths, out=offsets[1:])
            blocks[role] = _Stored(
                store.array(f"{role}.dense"),
                store.array(f"{role}.ranks"),
                store.array(f"{role}.bag_values"),
                offsets,
                len(schema.layout(role).bags),
            )
        group = None if schema.group is None else store.array("group")
        return Encoded(blocks, store.array("label"), store.array("split"), group, store.folder)
    except BaseException:
        store.remove()
        raise


def _gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Batches put together until they have at least `rows` rows."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(b.num_rows for b in held) >= rows:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held = []
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def _groups(name: str, column: pa.Array) -> I64:
    if column.null_count:
        raise DataError(f"group column '{name}': a value is missing, and a row without it has no request")
    if pt.is_integer(column.type):
        codes: I64 = column.to_numpy(zero_copy_only=False)
        return codes
    return stable_hash(pc.cast(column, pa.string())).view(np.int64)


class _Store:
    """Named arrays that grow by their first axis, in memory until they are too many bytes together."""

    def __init__(self, memory_bytes: int) -> None:
        self.names: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.folder: Path | None = None
        self._chunks: dict[str, list[NDArray[Any]]] = {}
        self._left = memory_bytes

    def append(self, name: str, chunk: NDArray[Any]) -> None:
        rows = self.names[name][1][0] if name in self.names else 0
        self.names[name] = (chunk.dtype, (rows + chunk.shape[0], *chunk.shape[1:]))
        self._chunks.setdefault(name, []).append(chunk)
        self._left -= chunk.nbytes
        if self._left < 0:
            self._spill()

    def _spill(self) -> None:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="polyrec-encoded-"))
        for name, chunks in self._chunks.items():
            with (self.folder / name).open("ab") as f:
                for chunk in chunks:
                    chunk.tofile(f)
        self._chunks.clear()

    def array(self, name: str) -> NDArray[Any]:
        """The whole array; the store gives up what it has of it."""
        if self.folder is None:
            # One array at a time: there are never two copies of everything.
            return np.concatenate(self._chunks.pop(name))
        return self._mapped(name, "r")

    def zeros(self, name: str, size: int) -> I64:
        """int64 [size], kept where the other arrays are."""
        if self.folder is None:
            return np.zeros(size, np.int64)
        self.names[name] = (np.dtype(np.int64), (size,))
        with (self.folder / name).open("wb") as f:
            f.truncate(size * 8)
        return self._mapped(name, "r+")

    def _mapped(self, name: str, mode: Literal["r", "r+"]) -> NDArray[Any]:
        dtype, shape = self.names[name]
        if self.folder is None or 0 in shape:
            return np.empty(shape, dtype)
        return np.asarray(np.memmap(self.folder / name, dtype, mode, shape=shape))

    def remove(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
