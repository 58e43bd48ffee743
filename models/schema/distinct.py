"""Which rows are equal, exactly, as whole arrays: equal neighbors, and equal rows anywhere.

Columns go in (numbers and ids as arrays, bags as jagged arrays), answers about whole rows come out.
Numbers are compared by their bits and bags by their content in order, so that a row may stand for
another wherever it is read. Rows are found by a 64-bit hash, and each is then compared with the row
that is to stand for it: a hash that errs is replaced by another, so the answer never depends on luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrec.models.mixing import U64, mix
from polyrec.models.schema.batch import I64, take_bags

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Jagged:
    """One list a row. values: [total]. offsets: int64 [rows + 1], from 0; row r has
    values[offsets[r] : offsets[r + 1]]."""

    values: NDArray[Any]
    offsets: I64

    @property
    def rows(self) -> int:
        return self.offsets.size - 1

    @property
    def lengths(self) -> I64:
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.offsets.nbytes

    def take(self, rows: I64) -> Jagged:
        """The given rows, in the given order, repeats allowed."""
        return Jagged(*take_bags(self.values, self.offsets, rows))


Column = NDArray[Any] | Jagged
"""A feature of all rows: [rows] or [rows, k] numbers of one type, or a list a row."""


def take(column: Column, rows: I64) -> Column:
    """The given rows of a column."""
    return column.take(rows) if isinstance(column, Jagged) else np.take(column, rows, axis=0)


def rows_of(column: Column) -> int:
    """How many rows a column has."""
    return column.rows if isinstance(column, Jagged) else int(column.shape[0])


def changes(columns: Sequence[Column], rows: int) -> Bools:
    """bool [rows]: whether a row differs from the one before it; the first does."""
    changed = np.zeros(rows, bool)
    changed[:1] = True
    for column in columns:
        if isinstance(column, Jagged):
            lengths = column.lengths
            changed[1:] |= lengths[1:] != lengths[:-1]
            values = bits(column.values)
            # Where the lengths agree, the row before is `length` values back; elsewhere it is settled.
            back = np.maximum(np.arange(values.size) - np.repeat(lengths, lengths), 0)
            changed[np.repeat(np.arange(rows), lengths)[values != values[back]]] = True
        elif column.size:
            x = bits(column).reshape(rows, -1)
            changed[1:] |= (x[1:] != x[:-1]).any(axis=1)
    return changed


def distinct(columns: Sequence[Column], rows: int) -> tuple[I64, I64]:
    """(first, inverse): row r equals row first[inverse[r]], the first of its kind.

    first: int64 [distinct rows], ascending. inverse: int64 [rows].
    """
    # Equal neighbors are common where data is clustered, and cheaper to find than to sort.
    changed = changes(columns, rows)
    heads = np.flatnonzero(changed)
    of_run = np.cumsum(changed) - 1
    own = [take(column, heads) for column in columns]
    for seed in count():
        _, first, inverse = np.unique(_hash(own, heads.size, seed), return_index=True, return_inverse=True)
        if all(_stands_for(column, first[inverse]) for column in own):
            break
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return heads[first[order]], place[inverse][of_run]


def bits(x: NDArray[Any]) -> NDArray[Any]:
    """The numbers' bits as unsigned integers of the same size: equal only if nothing tells them apart."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def _hash(columns: Sequence[Column], rows: int, seed: int) -> U64:
    salt = mix(np.array([seed], np.uint64))
    h = np.repeat(salt, rows)
    for column in columns:
        if isinstance(column, Jagged):
            place = np.arange(column.values.size) - np.repeat(column.offsets[:-1], column.lengths)
            mixed = mix(mix(place.astype(np.uint64) ^ salt) ^ bits(column.values))
            # Differences of a running sum that wraps around are each list's own sum, modulo 2^64.
            sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)))
            h = mix(h ^ np.diff(sums[column.offsets]))
            h = mix(h ^ column.lengths.astype(np.uint64))
        else:
            for x in bits(column).reshape(rows, -1).T if column.size else ():
                h = mix(h ^ x)
    return h


def _stands_for(column: Column, rows: I64) -> bool:
    """Whether every row of the column equals the row `rows` says."""
    if isinstance(column, Jagged):
        other = column.take(rows)
        return np.array_equal(column.offsets, other.offsets) and np.array_equal(
            bits(column.values), bits(other.values)
        )
    return np.array_equal(bits(column), bits(np.take(column, rows, axis=0)))
