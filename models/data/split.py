"""Assigns rows to training, validation and test by a schema's split rule.

`fit_splitter` computes the cuts of a time split in one pass over one column; the `Splitter` that it returns
assigns any batch of the same data consistently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from polyrec.models.data.reader import DataReader
from polyrec.models.errors import DataError
from polyrec.models.mixing import U64, mix
from polyrec.models.progress import RowsDone, ignore_rows
from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import Schema, Split

MERGE_FROM = 1 << 20
ROWS = 65536

TRAIN, VALIDATION, TEST = 0, 1, 2
NAMES = ("train", "validation", "test")

_NO_TIME = "split column '{}': a value is missing, and a row without a time has no split"

I8 = NDArray[np.int8]
Times = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Splitter:
    """A split rule with its cuts.

    cuts: for a time split, the largest value of the training rows and that of all rows before the test rows;
    both None for other rules.
    """

    split: Split
    cuts: tuple[int | float, int | float] | None = None

    def __call__(self, data: pa.RecordBatch) -> I8:
        """Assigns rows, which have the split's columns, int8 [rows]: 0 train, 1 validation, 2 test.

        Raises DataError if a time is missing, or a split column has an unexpected value.
        """
        if self.split.rule == "hash":
            return self._by_hash(data)
        name = self.split.columns[0]
        column = data.column(name)
        if self.split.rule == "column":
            which = pc.fill_null(pc.index_in(column, value_set=pa.array(NAMES)), -1)
            labels: I8 = which.to_numpy(zero_copy_only=False).astype(np.int8)
            if labels.size and labels.min() < 0:
                value = column[int(labels.argmin())].as_py()
                raise DataError(f"split column '{name}' says {value!r}; it must be one of {', '.join(NAMES)}")
            return labels
        if self.cuts is None:
            raise ValueError("a time split without cuts")
        train, before_test = self.cuts
        values = _times(name, column)
        return (values > train).astype(np.int8) + (values > before_test).astype(np.int8)

    def _by_hash(self, data: pa.RecordBatch) -> I8:
        h = np.zeros(data.num_rows, np.uint64)
        for name in self.split.columns:
            h = mix(h * np.uint64(31) + stable_hash(data.column(name)))
        share = h.astype(np.float64) / 2.0**64
        train = self.split.train * (1.0 - self.split.validation)
        return (share >= train).astype(np.int8) + (share >= self.split.train).astype(np.int8)


def fit_splitter(reader: DataReader, schema: Schema, progress: RowsDone = ignore_rows) -> Splitter:
    """Returns the splitter of a data set. progress: called with the number of rows of each batch.

    A time split cuts between values, never within one. The rows before the test rows are the smallest prefix
    in time with at least the `train` share of all rows; of those, the training rows are the smallest prefix
    that leaves at most the `validation` share. If there are few times, such as a few days, the last one is
    for test and the one before it for validation, whatever their shares.
    Raises DataError for a missing time, or a single one.
    """
    split = schema.split
    if split.rule != "time":
        return Splitter(split)
    name = split.columns[0]
    values, counts = _distinct(reader, name, progress)
    ends = np.cumsum(counts)
    if values.size == 1:
        raise DataError(
            f"{reader.path}: the split by time leaves no test rows: '{name}' has 1 different value, and "
            "training, validation and test need one each"
        )
    last = min(int(np.searchsorted(ends, split.train * ends[-1])), values.size - 2)
    train = int(np.searchsorted(ends[: last + 1], (1.0 - split.validation) * ends[last]))
    train = min(train, max(last - 1, 0))
    return Splitter(split, (values[train].item(), values[last].item()))


def require_test_rows(reader: DataReader, schema: Schema) -> Splitter:
    """Returns the splitter of a data set. Raises DataError if the split leaves no test rows.

    Reads rows up to the first test row; of a split by time, which has one unless it cannot be fitted, all.
    """
    splitter = fit_splitter(reader, schema)
    if splitter.cuts is None:
        parts = reader.batches(schema.split.columns, ROWS)
        if not any((splitter(data) == TEST).any() for data in parts):
            raise DataError(f"{reader.path}: the split by {schema.split.rule} leaves no test rows")
    return splitter


def _distinct(reader: DataReader, name: str, progress: RowsDone) -> tuple[Times, I64]:
    """Returns the distinct values of a column, ascending, and the number of rows of each."""
    values: list[Times] = []
    counts: list[I64] = []
    pending = merged = done = 0
    for data in reader.batches([name], ROWS):
        if data.column(name).null_count:
            row = done + pc.index(data.column(name).is_null(), True).as_py()
            raise DataError(f"{reader.path}: row {row}: {_NO_TIME.format(name)}")
        done += data.num_rows
        some, n = np.unique(_times(name, data.column(name)), return_counts=True)
        values.append(some)
        counts.append(n)
        pending += some.size
        # merge whenever they have doubled, so that memory stays proportional to the distinct values
        if pending > max(MERGE_FROM, 2 * merged):
            values, counts = _merged(values, counts)
            pending = merged = values[0].size
        progress(data.num_rows)
    if not values:
        raise DataError(f"{reader.path}: there are no rows to split")
    values, counts = _merged(values, counts)
    return values[0], counts[0]


def _merged(values: list[Times], counts: list[I64]) -> tuple[list[Times], list[I64]]:
    unique, where = np.unique(np.concatenate(values), return_inverse=True)
    total = np.zeros(unique.size, np.int64)
    np.add.at(total, where, np.concatenate(counts))
    return [unique], [total]


def _times(name: str, column: pa.Array) -> Times:
    # first, as a column without any value has no type and is read as text
    if column.null_count:
        raise DataError(_NO_TIME.format(name))
    if not (pt.is_integer(column.type) or pt.is_floating(column.type)):
        raise DataError(f"split column '{name}' is {column.type}; a split by time needs a number or a time")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def stable_hash(values: pa.Array) -> U64:
    """Hashes values to uint64 [len(values)], identically on every machine and in every version.

    Accepts strings, integers and floats; null is hashed like a value. Each distinct value is hashed once.
    """
    encoded = values.dictionary_encode()
    unique = encoded.dictionary
    if pt.is_string(unique.type):
        hashes = _hash_strings(unique)
    else:
        # adding zero turns -0.0 into 0.0, which is equal
        hashes = mix((unique.to_numpy(zero_copy_only=False) + 0).view(np.uint64))
    hashes = np.append(hashes, mix(np.array([0x6E756C6C], np.uint64)))
    codes = pc.fill_null(encoded.indices, len(unique)).to_numpy(zero_copy_only=False)
    return np.asarray(hashes[codes])


def _hash_strings(values: pa.Array) -> U64:
    """Hashes all strings together, eight bytes at a time."""
    _, offset_bytes, data_bytes = values.buffers()
    offsets = np.frombuffer(offset_bytes, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
    data = np.frombuffer(data_bytes or b"", np.uint8)
    data = np.append(data, np.zeros(8, np.uint8))
    lengths = np.diff(offsets)
    hashes = mix(lengths.astype(np.uint64))
    active = np.flatnonzero(lengths > 0)
    for done in range(0, int(lengths.max(initial=0)), 8):
        active = active[lengths[active] > done]
        words = data[(offsets[active] + done)[:, None] + np.arange(8)]
        words[np.arange(8) >= (lengths[active] - done)[:, None]] = 0
        hashes[active] = mix(hashes[active] ^ words.view("<u8").ravel().astype(np.uint64))
    return hashes
