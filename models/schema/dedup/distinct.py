"""Finds equal rows exactly, with whole-array operations: equal neighbors, and equal rows anywhere.

Input is columns (numbers and ids as arrays, bags as jagged arrays), output is indices of distinct rows.
Numbers are compared by their bits and bags by their ordered content, so equal rows are interchangeable. Rows
are grouped by a 64-bit hash and compared with the representative of their group; if the hash collides,
grouping is repeated with another seed.
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
    """One list per row. values: [total]. offsets: int64 [rows + 1], from 0; row r has
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
        """Selects rows, in the order given; repeats allowed."""
        return Jagged(*take_bags(self.values, self.offsets, rows))


Column = NDArray[Any] | Jagged
"""A feature of all rows: [rows] or [rows, k] numbers of one type, or a list per row."""


def take(column: Column, rows: I64) -> Column:
    """Selects rows of a column."""
    return column.take(rows) if isinstance(column, Jagged) else np.take(column, rows, axis=0)


def rows_of(column: Column) -> int:
    """Returns the number of rows of a column."""
    return column.rows if isinstance(column, Jagged) else int(column.shape[0])


def row_changes(columns: Sequence[Column], rows: int) -> Bools:
    """Returns bool [rows], True for the first row and where a row differs from the one before it."""
    changed = np.zeros(rows, bool)
    changed[:1] = True
    for column in columns:
        if isinstance(column, Jagged):
            lengths = column.lengths
            changed[1:] |= lengths[1:] != lengths[:-1]
            values = bits(column.values)
            # Where the lengths agree, the previous row's value is `length` positions back; elsewhere the rows
            # differ.
            back = np.maximum(np.arange(values.size) - np.repeat(lengths, lengths), 0)
            changed[np.repeat(np.arange(rows), lengths)[values != values[back]]] = True
        elif column.size:
            x = bits(column).reshape(rows, -1)
            changed[1:] |= (x[1:] != x[:-1]).any(axis=1)
    return changed


def distinct(columns: Sequence[Column], rows: int) -> tuple[I64, I64]:
    """Returns (first, inverse): row r equals row first[inverse[r]], the first such row.

    first: int64 [distinct rows], ascending. inverse: int64 [rows].
    """
    # In clustered data equal neighbors are common, and cheaper to find by comparing than by sorting.
    changed = row_changes(columns, rows)
    heads = np.flatnonzero(changed)
    of_run = np.cumsum(changed) - 1
    run_heads = [take(column, heads) for column in columns]
    for seed in count():
        _, first, inverse = np.unique(
            _hash(run_heads, heads.size, seed), return_index=True, return_inverse=True
        )
        if all(_rows_equal(column, first[inverse]) for column in run_heads):
            break
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return heads[first[order]], place[inverse][of_run]


def bits(x: NDArray[Any]) -> NDArray[Any]:
    """Reinterprets numbers as unsigned integers of the same size, so that NaN equals NaN and 0.0 differs from
    -0.0.
    """
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def _hash(columns: Sequence[Column], rows: int, seed: int) -> U64:
    salt = mix(np.array([seed], np.uint64))
    h = np.repeat(salt, rows)
    for column in columns:
        if isinstance(column, Jagged):
            place = np.arange(column.values.size) - np.repeat(column.offsets[:-1], column.lengths)
            mixed = mix(mix(place.astype(np.uint64) ^ salt) ^ bits(column.values))
            # The differences of a running sum that wraps around are the lists' own sums, modulo 2^64.
            sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)))
            h = mix(h ^ np.diff(sums[column.offsets]))
            h = mix(h ^ column.lengths.astype(np.uint64))
        else:
            for x in bits(column).reshape(rows, -1).T if column.size else ():
                h = mix(h ^ x)
    return h


def _rows_equal(column: Column, rows: I64) -> bool:
    """Returns whether row i equals row `rows[i]`, for all rows i."""
    if isinstance(column, Jagged):
        other = column.take(rows)
        return np.array_equal(column.offsets, other.offsets) and np.array_equal(
            bits(column.values), bits(other.values)
        )
    return np.array_equal(bits(column), bits(np.take(column, rows, axis=0)))
