"""Compares raw values of candidates with those of their contexts, as codes or directly."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import cast

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.schema.dedup.distinct import Jagged
from polyrec.models.schema.request.rows import Bools, Matches

NO_VALUE = int(np.iinfo(np.int64).min)
"""Code of a candidate's value that equals none: missing, or unknown without an identity."""
NO_CONTEXT_VALUE = NO_VALUE + 1
"""The same of a context's value, another code so that two such values are not equal."""
_OTHER = 0x2545F4914F6CDD1D
"""Random bits, which make an integer that no data are likely to have of one that is also such a code."""


def integer_codes(values: I64, is_missing: Bools, missing: int) -> I64:
    """Returns integers as codes, `missing` where missing.

    The two integers that are the codes of missing values (-2^63 marks missing ones in other programs) get
    other codes. values, is_missing: [n]. missing: NO_VALUE or NO_CONTEXT_VALUE.
    """
    if values.size and values.min() <= NO_CONTEXT_VALUE:
        values = np.where(values <= NO_CONTEXT_VALUE, values ^ _OTHER, values)
    return np.where(is_missing, missing, values)


def singles(codes: I64) -> Jagged:
    """Wraps the codes of a single-valued context feature, int64 [contexts], as lists of one."""
    return Jagged(codes, np.arange(codes.size + 1))


def match_codes(candidate: I64, context: Jagged, context_row: I64 | None = None) -> Matches:
    """Finds the value of each row in the list of its context.

    candidate: int64 [rows], codes that are equal where values are equal, or NO_VALUE.
    context: a list of such codes, or NO_CONTEXT_VALUE, per context.
    context_row: int64 [rows], the context of each row; None if row r has context r, or there is only one.
    """
    rows = candidate.size
    if context.rows == 1:
        if not context.values.size:
            return Matches(np.full(rows, -1), context.lengths)
        equal = candidate[:, None] == context.values
        return Matches(np.where(equal.any(axis=1), equal.argmax(axis=1), -1), context.lengths)
    of_rows = context if context_row is None else context.take(context_row)
    row = np.arange(rows).repeat(of_rows.lengths)
    hits = (of_rows.values == candidate[row]).nonzero()[0][::-1]
    at = np.full(rows, -1)
    # on several hits per row, the last assignment wins, which is the first in its list
    at[row[hits]] = hits - of_rows.offsets[row[hits]]
    return Matches(at, of_rows.lengths)


def match_values(candidate: Sequence[object], context: Sequence[object]) -> Matches:
    """Finds each raw value, `hashed_apart`, in the list of the only context; None is a missing value.

    The same as codes of these values and `match_codes`, but only the context's values enter a dictionary.
    """
    places = {value: len(context) - 1 - i for i, value in enumerate(reversed(context)) if value is not None}
    found = map(places.get, candidate, repeat(-1)) if places else repeat(-1, len(candidate))
    return Matches(np.fromiter(found, np.int64, count=len(candidate)), np.array([len(context)]))


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
