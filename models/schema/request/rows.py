"""The raw values from which request features are computed, and the positions of rows in their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import F64, I64

Bools = NDArray[np.bool_]
Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Matches:
    """Which rows have a value that their context has too.

    at: int64 [rows], position of a row's value in the list of its context, -1 if it is not there.
    listed: int64 [rows], number of values in the list of its context; [1] if all rows have the same context.
    """

    at: I64
    listed: I64

    @staticmethod
    def joined(parts: Sequence[Matches]) -> Matches:
        """Concatenates the rows of all parts, in order."""
        at = np.concatenate([p.at for p in parts])
        if all(p.listed.size == 1 for p in parts):
            listed = np.concatenate([p.listed for p in parts]).repeat([p.at.size for p in parts])
        else:
            listed = np.concatenate([np.broadcast_to(p.listed, p.at.shape) for p in parts])
        return Matches(at, listed)

    def take(self, rows: I64) -> Matches:
        """Selects rows."""
        return Matches(self.at[rows], self.listed if self.listed.size == 1 else self.listed[rows])


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The raw values from which request features are computed.

    lengths: int64 [requests], rows per request, at least one; the rows of a request are adjacent.
    numbers: dense feature -> float64 [rows], NaN where missing.
    matches: (candidate feature, context feature) -> their comparison.
    """

    lengths: I64
    numbers: Mapping[str, F64]
    matches: Mapping[tuple[str, str], Matches]

    @staticmethod
    def joined(parts: Sequence[RequestRows]) -> RequestRows:
        """Concatenates the requests of all parts, in order."""
        first = parts[0]
        return RequestRows(
            np.concatenate([p.lengths for p in parts]),
            {name: np.concatenate([p.numbers[name] for p in parts]) for name in first.numbers},
            {names: Matches.joined([p.matches[names] for p in parts]) for names in first.matches},
        )

    def take(self, rows: I64, lengths: I64) -> RequestRows:
        """Selects rows. lengths: int64, rows per request they form."""
        return RequestRows(
            lengths,
            {name: x[rows] for name, x in self.numbers.items()},
            {names: found.take(rows) for names, found in self.matches.items()},
        )


def request_order(group: I64) -> tuple[I64, I64]:
    """Groups rows by request: returns (order, lengths).

    group: int64 [rows], the request of each row. order: rows request by request, each in the order given.
    lengths: rows per request.
    """
    heads = np.flatnonzero(np.diff(group, prepend=group[0] + 1))
    if np.unique(group[heads]).size == heads.size:
        return np.arange(group.size), np.diff(heads, append=group.size)
    order = np.argsort(group, kind="stable")
    heads = np.flatnonzero(np.diff(group[order], prepend=group[order[0]] + 1))
    return order, np.diff(heads, append=group.size)


class Places:
    """The positions of rows in their requests.

    starts: int64 [requests], first row of each. request: int64 [rows], the request of each row; None if there
    is only one. row: float64 [rows], 0 ... rows - 1. index: like row, but counted within each request.
    """

    def __init__(self, lengths: I64, starts: I64, row: F64, request: I64 | None) -> None:
        self.lengths, self.starts, self.row, self.request = lengths, starts, row, request
        self.rows = row.size
        self.index = row if request is None else row - starts[request]

    @staticmethod
    def from_lengths(lengths: I64) -> Places:
        """Returns the positions for requests of these lengths, int64 [requests]."""
        if lengths.size == 1:
            return Places(lengths, np.zeros(1, np.int64), np.arange(float(lengths[0])), None)
        ends = lengths.cumsum()
        request = np.arange(lengths.size).repeat(lengths)
        return Places(lengths, ends - lengths, np.arange(float(ends[-1])), request)

    def spread(self, values: Numbers) -> Numbers:
        """Expands values [..., requests] to [..., rows]; returns [..., 1], which broadcasts, for a single
        request.
        """
        return values if self.request is None else values[..., self.request]

    def relative(self) -> F64:
        relative: F64 = self.index / np.maximum(self.spread(self.lengths) - 1, 1)
        return relative

    def shifted(self, x: F64, by: int) -> F64:
        """Returns the value `by` rows earlier in the same request, NaN beyond its ends; `by` is 1 or -1."""
        out = np.empty(self.rows)
        if by > 0:
            out[1:] = x[:-1]
            out[self.starts] = np.nan
        else:
            out[:-1] = x[1:]
            out[self.starts + self.lengths - 1] = np.nan
        return out
