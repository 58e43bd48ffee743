"""Computes request features: numbers of each candidate that depend on the other rows of its request.

Input is the raw values of requests of any lengths, output is one column per feature, computed with
whole-array operations. Training, evaluation and all forms of request apply it to the same raw values, before
transforms, so that a model is served the features that it was trained on. In a request of n rows, with i = 0
... n-1 the position of this row:

    relative_position   i / (n - 1); 0 in a request of one row
    length              n
    rank                number of smaller values in the request; equal values share their mean rank
    difference, ratio   this row's value minus, or divided by, a statistic of the request's values
                        (`minimum`, `maximum`, `mean`, `median`), or the value of the row before or after
                        (`previous`, `next`); with `among`, a `match` feature, only rows that match have a
                        value for the statistic
    match               1 if this row's value is (one of) the context's, else 0
    place               position of this row's value in the context's list, from 0; missing without a match
    listed              number of values in the context's list
    present             1 if any row of the request matches, else 0
    count               number of rows of the request that match
    position            i of the first row that matches; missing if none does
    after               rows since the last match, 0 if this row matches; missing if there was none
    before              rows until the next match, 0 if this row matches; missing if there will be none
    distance            `after` or minus `before`, whichever is nearer to 0; `after` if both are

Missing numbers are left out of ranks and statistics. A result is missing (NaN) if it derives from a missing
number, from no number, or from a division by 0, or if float64 cannot hold it. Missing ids match nothing. A
row is compared with its own context. The order of rows matters only for `relative_position`, `position`,
`distance`, `after`, `before`, `previous` and `next`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.distinct import Jagged
from polyrec.models.schema.schema import OF_MATCH, OF_NUMBER, OF_NUMBER_TO, RequestFeature, Schema

NO_VALUE = int(np.iinfo(np.int64).min)
"""Code of a candidate's value that equals none: missing, or unknown without an identity."""
NO_CONTEXT_VALUE = NO_VALUE + 1
"""The same of a context's value, another code so that two such values are not equal."""

Bools = NDArray[np.bool_]
Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The raw values from which request features are computed.

    lengths: int64 [requests], rows per request, at least one; the rows of a request are adjacent.
    numbers: dense feature -> float64 [rows], NaN where missing.
    candidate: categorical feature -> int64 [rows], codes that are equal where values are equal, or NO_VALUE.
    context: categorical feature -> such codes of each context, or NO_CONTEXT_VALUE; one code per context for
        a single-valued feature.
    context_row: int64 [rows], the context of each row; None if row r has context r.
    """

    lengths: I64
    numbers: Mapping[str, F64]
    candidate: Mapping[str, I64]
    context: Mapping[str, Jagged]
    context_row: I64 | None = None

    def take(self, rows: I64, lengths: I64) -> RequestRows:
        """Selects rows that each have their own context. lengths: int64, rows per request they form."""
        return RequestRows(
            lengths,
            {name: x[rows] for name, x in self.numbers.items()},
            {name: codes[rows] for name, codes in self.candidate.items()},
            {name: codes.take(rows) for name, codes in self.context.items()},
        )


def singles(codes: I64) -> Jagged:
    """Wraps the codes of a single-valued context feature, int64 [contexts], as lists of one."""
    return Jagged(codes, np.arange(codes.size + 1))


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


class RequestFeatures:
    """The request features of one schema.

    numbers, candidate, context: the raw features that they are computed from, as in RequestRows.
    """

    def __init__(self, schema: Schema) -> None:
        self._features = schema.request
        places = list(enumerate(schema.request))
        numeric = OF_NUMBER + OF_NUMBER_TO
        matches = dict.fromkeys((r.of or "", r.to or "") for r in schema.request if r.compute in OF_MATCH)
        self.names = tuple(r.name for r in schema.request)
        self.numbers = tuple(dict.fromkeys(r.of or "" for r in schema.request if r.compute in numeric))
        self.candidate = tuple(dict.fromkeys(of for of, _ in matches))
        self.context = tuple(dict.fromkeys(to for _, to in matches))
        read = {*self.candidate, *self.context}
        self.singles = tuple(f for f in schema.categorical if f.name in read and not f.multi)
        self.bags = tuple(f for f in schema.categorical if f.name in read and f.multi)
        # computed together, by number and by match: pairs of (result column, feature)
        self._of_rows = [(i, r.compute) for i, r in places if r.of is None]
        match_of = {r.name: (r.of or "", r.to or "") for r in schema.request}
        self._of_numbers: dict[tuple[str, tuple[str, str] | None], list[tuple[int, RequestFeature]]] = {}
        for i, r in places:
            if r.compute in numeric:
                among = None if r.among is None else match_of[r.among]
                self._of_numbers.setdefault((r.of or "", among), []).append((i, r))
        self._of_matches = {
            match: [(i, r.compute) for i, r in places if (r.of, r.to) == match] for match in matches
        }

    def compute_grouped(self, rows: RequestRows, group: I64) -> F64:
        """Returns the features of rows that each have their own context, float64 [rows, features].

        rows: in any order; `lengths` are ignored. group: int64 [rows], the request of each row.
        """
        order, lengths = request_order(group)
        if lengths.size == 1 or (order[1:] > order[:-1]).all():
            return self(replace(rows, lengths=lengths))
        out = np.empty((order.size, len(self.names)))
        out[order] = self(rows.take(order, lengths))
        return out

    def __call__(self, rows: RequestRows) -> F64:
        """Returns the features, float64 [rows, features], NaN where missing."""
        place = _Places.from_lengths(rows.lengths)
        # stored [features, rows], so that each column is written contiguously
        out = np.empty((len(self.names), place.rows))
        for i, compute in self._of_rows:
            out[i] = place.relative() if compute == "relative_position" else place.spread(place.lengths)
        matches = {
            (of, to): _Match.from_values(rows.candidate[of], rows.context[to], rows.context_row, place)
            for of, to in self._of_matches
        }
        for key, computes in self._of_matches.items():
            for i, compute in computes:
                out[i] = getattr(matches[key], compute)()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for (name, among), features in self._of_numbers.items():
                x = rows.numbers[name]
                number = _Number(x if among is None else np.where(matches[among].match(), x, np.nan), place)
                for i, r in features:
                    if r.compute == "rank":
                        out[i] = number.rank()
                    elif r.compute == "difference":
                        np.subtract(x, number.statistic(r.to or ""), out=out[i])
                    else:
                        np.divide(x, number.statistic(r.to or ""), out=out[i])
        # undefined and too large values are infinite up to here
        np.copyto(out, np.nan, where=np.isinf(out))
        return out.T


class _Places:
    """The positions of rows in their requests.

    starts: int64 [requests], first row of each. request: int64 [rows], the request of each row; None if there
    is only one. row: float64 [rows], 0 ... rows - 1. index: like row, but counted within each request.
    """

    def __init__(self, lengths: I64, starts: I64, row: F64, request: I64 | None) -> None:
        self.lengths, self.starts, self.row, self.request = lengths, starts, row, request
        self.rows = row.size
        self.index = row if request is None else row - starts[request]

    @staticmethod
    def from_lengths(lengths: I64) -> _Places:
        """Returns the positions for requests of these lengths, int64 [requests]."""
        if lengths.size == 1:
            return _Places(lengths, np.zeros(1, np.int64), np.arange(float(lengths[0])), None)
        ends = lengths.cumsum()
        request = np.arange(lengths.size).repeat(lengths)
        return _Places(lengths, ends - lengths, np.arange(float(ends[-1])), request)

    def spread(self, values: Numbers) -> Numbers:
        """Expands one value per request to one per row; returns [1], which broadcasts, for a single
        request.
        """
        return values if self.request is None else values[self.request]

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


class _Number:
    """Ranks and statistics of one number in each request. x: float64 [rows], NaN where missing."""

    def __init__(self, x: F64, place: _Places) -> None:
        self.x, self._place = x, place
        missing = np.isnan(x)
        self._filled, self._count = x, place.lengths
        if missing.any():
            self._filled = np.where(missing, 0.0, x)
            self._count = place.lengths - np.add.reduceat(missing, place.starts, dtype=np.int64)
        self._known: dict[str, Numbers] = {}

    @cached_property
    def _order(self) -> I64 | None:
        """Sorts rows by request and value, missing values (NaN) last; None for a single request."""
        return None if self._place.request is None else np.lexsort((self.x, self._place.request))

    @cached_property
    def _sorted(self) -> F64:
        return np.sort(self.x) if self._order is None else self.x[self._order]

    def statistic(self, name: str) -> Numbers:
        if name not in self._known:
            self._known[name] = self._computed(name)
        return self._known[name]

    def _computed(self, name: str) -> Numbers:
        place, starts, count = self._place, self._place.starts, self._count
        if name in ("previous", "next"):
            return place.shifted(self.x, 1 if name == "previous" else -1)
        if name == "mean":
            # without values this is 0 / 0, NaN
            return place.spread(np.add.reduceat(self._filled, starts) / count)
        # without values, the first of the sorted ones is NaN
        if name == "minimum":
            return place.spread(self._sorted[starts])
        last = np.maximum(count - 1, 0)
        if name == "maximum":
            return place.spread(self._sorted[starts + last])
        low, high = self._sorted[starts + last // 2], self._sorted[starts + (last + 1) // 2]
        return place.spread(low + (high - low) * 0.5)

    def rank(self) -> F64:
        if self._order is None:
            low, high = self._sorted.searchsorted(self.x), self._sorted.searchsorted(self.x, "right")
            # x - x is 0, or NaN where x is NaN
            single: F64 = (low + high - 1) * 0.5 + (self.x - self.x)
            return single
        head = np.empty(self._place.rows, bool)
        np.not_equal(self._sorted[1:], self._sorted[:-1], out=head[1:])
        head[self._place.starts] = True
        heads = head.nonzero()[0]
        sizes = np.diff(heads, append=self._place.rows)
        ranks = np.empty(self._place.rows)
        # a request's rows occupy the same positions before and after sorting
        ranks[self._order] = (self._place.index[heads] + (sizes - 1) * 0.5).repeat(sizes)
        return ranks + (self.x - self.x)


class _Match:
    """Which rows have a value that their context has too.

    matching: bool [rows]. listed: number of values of the single context, or int64 [rows] of each row's
    context.
    equal: bool [rows, values], comparison with each value of the single context; None if there are several
    contexts. `at` is then int64 [rows], the position in the list. Undefined results are infinite.
    """

    def __init__(
        self,
        matching: Bools,
        place: _Places,
        listed: int | I64,
        equal: Bools | None = None,
        at: I64 | None = None,
    ) -> None:
        self._matching, self._place, self._equal, self._at = matching, place, equal, at
        self._listed = listed
        self._matching_row = np.where(matching, place.row, np.inf)

    @staticmethod
    def from_values(values: I64, context: Jagged, context_row: I64 | None, place: _Places) -> _Match:
        """Compares rows with their contexts. values: int64 [rows]; context, context_row: as in
        RequestRows.
        """
        if context.rows == 1:
            if context.values.size == 1:
                matching = values == context.values
                return _Match(matching, place, 1, at=np.zeros(place.rows, np.int64))
            equal = values[:, None] == context.values
            return _Match(equal.any(axis=1), place, context.values.size, equal)
        of_rows = context if context_row is None else context.take(context_row)
        row = np.arange(place.rows).repeat(of_rows.lengths)
        hits = (of_rows.values == values[row]).nonzero()[0][::-1]
        matching, at = np.zeros(place.rows, bool), np.zeros(place.rows, np.int64)
        matching[row[hits]] = True
        # on several hits per row, the last assignment wins, which is the first in its list
        at[row[hits]] = hits - of_rows.offsets[row[hits]]
        return _Match(matching, place, of_rows.lengths, at=at)

    def match(self) -> Bools:
        return self._matching

    def place(self) -> F64:
        if self._at is None:
            if self._equal is None or not self._equal.size:
                return np.full(self._place.rows, np.inf)
            self._at = self._equal.argmax(axis=1)
        return np.where(self._matching, self._at, np.inf)

    def listed(self) -> int | I64:
        return self._listed

    def count(self) -> Numbers:
        return self._place.spread(np.add.reduceat(self._matching, self._place.starts, dtype=np.int64))

    def present(self) -> Numbers:
        return self._place.spread(np.logical_or.reduceat(self._matching, self._place.starts))

    def position(self) -> Numbers:
        first = np.minimum.reduceat(self._matching_row, self._place.starts) - self._place.starts
        return self._place.spread(first)

    def after(self) -> F64:
        # the row before a request's first row belongs to another request
        latest = np.maximum.accumulate(np.where(self._matching, self._place.row, -np.inf))
        after: F64 = self._place.row - latest
        after[after > self._place.index] = np.inf
        return after

    def before(self) -> F64:
        place = self._place
        before: F64 = np.minimum.accumulate(self._matching_row[::-1])[::-1] - place.row
        before[before + place.index >= place.spread(place.lengths)] = np.inf
        return before

    def distance(self) -> F64:
        after, before = self.after(), self.before()
        return np.where(after <= before, after, -before)


def hashed_apart(values: Sequence[object]) -> Sequence[object]:
    """Replaces integers beyond 64 bits by their digits, to bound the number of equal hashes.

    Python hashes an integer to its value modulo 2^61 - 1, so clients could send any number of integers with
    the same hash, on which a dictionary takes quadratic time. Hashes of bytes are randomized.
    """
    try:
        array("q", cast(Sequence[int], values))
    except (TypeError, OverflowError):
        pass
    else:
        return values  # all are integers of 64 bits; to look at each here would double a column's time
    if int not in set(map(type, values)):
        return values
    return [
        b"%d" % value if isinstance(value, int) and not -(2**63) <= value < 2**64 else value
        for value in values
    ]


def codes_of_values(
    candidate: Sequence[Sequence[object]], context: Sequence[Sequence[object]] = ()
) -> list[I64]:
    """Assigns codes to the raw values of all columns, in order, equal exactly where the values are equal.

    None becomes NO_VALUE in candidate columns and NO_CONTEXT_VALUE in context columns.
    """
    candidate, context = ([hashed_apart(column) for column in columns] for columns in (candidate, context))
    known = dict.fromkeys(value for column in (*candidate, *context) for value in column)
    code_of: dict[object, int] = dict(zip(known, range(len(known)), strict=True))
    get = code_of.__getitem__
    found: list[I64] = []
    for columns, missing in ((candidate, NO_VALUE), (context, NO_CONTEXT_VALUE)):
        if None in code_of:
            code_of[None] = missing
        found += [np.fromiter(map(get, column), np.int64, count=len(column)) for column in columns]
    return found
