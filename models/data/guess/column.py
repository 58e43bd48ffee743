"""Guesses what kind of feature a column is, from its name, type and values.

For a column that is not a feature, or represents something else (CSV files have times and lists as text), it
gives a reason that suggests a fix.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from polyrec.models.data.columns import floats
from polyrec.models.powers import next_power_of_two

ID = re.compile(
    r"(^|_)(id|no|nr|code|isbn|sku|uuid|hash)$"
    r"|^(item|user|product|movie|book)s?$"
    r"|^(article|hotel|listing|song|track|video|ad|campaign|customer|visitor)$",  # more of them are counts
    re.IGNORECASE,
)
SPLIT = re.compile(r"^(fold|split|index|row|unnamed.*)$", re.IGNORECASE)
"""Names of columns that tell how the file was made."""
WEIGHT = re.compile(
    r"^(sample|row|instance|example|importance|label|loss)_?weights?$|^propensity$", re.IGNORECASE
)
"""Names of columns that weight rows, which training does not do."""
FEW_VALUES = 64
"""Integers below this that take most values of their range are ids rather than amounts."""
MANY_VALUES = 1000
"""A vocabulary beyond this leaves out values seen once: their rows cannot be learned."""
UNIQUE_SHARE = 0.9
"""Share of distinct values above which a text identifies its row and cannot describe others."""
SEPARATORS = ("|", ";", ",")
MAX_INT64, MAX_EXACT = 2**63 - 1, 2**53
"""The largest integer of an id, and of a number, which is stored as float64."""
NUMBERS_FROM = 0.5
"""Share of a text's values that are numbers from which on it may be a number with words for missing ones."""
LISTED_FROM = 0.3
"""Share of a text's values with a separator from which on they may be lists, if their parts are far fewer."""


def guess_feature(name: str, column: pa.ChunkedArray) -> tuple[dict[str, Any] | None, str]:
    """Returns the feature (without name and role) or None, and the reason."""
    if SPLIT.match(name):
        return None, "by its name, how the file was made"
    if WEIGHT.match(name):
        return None, "by its name, a weight of the row: training weights all rows alike"
    type_ = column.type
    if pt.is_list(type_):
        return _bag(type_, column)
    if pt.is_null(type_) or column.null_count == len(column):
        return None, "missing in all rows"
    if pt.is_nested(type_):
        return None, "nested: make columns of its fields"
    distinct = pc.count_distinct(column).as_py()
    if distinct <= 1:
        return None, "the same in all rows"
    if is_text(type_):
        if _is_time_as_text(column):
            return None, "a time as text: write it as a timestamp, and rows are split by it"
        if distinct > UNIQUE_SHARE * len(column):
            why = f"{distinct:,} values in {len(column):,} rows: it identifies the row"
            return None, why + (_list_hint(column) or _number_hint(column))
        why = f"text, {distinct:,} values{_list_hint(column) or _number_hint(column)}"
        return {"type": "string"} | rare(distinct), why
    if pt.is_boolean(type_):
        return {"type": "integer", "cardinality": 2}, "true or false, in a request 1 or 0"
    if pt.is_integer(type_):
        return _integer(name, column, distinct)
    if pt.is_floating(type_) or pt.is_decimal(type_):
        return _number(column)
    return None, f"a column of {type_} cannot be a feature: make it a number or a text"


def _bag(type_: pa.DataType, column: pa.ChunkedArray) -> tuple[dict[str, Any] | None, str]:
    flat = pc.list_flatten(column)
    string = pt.is_string(type_.value_type) or pt.is_large_string(type_.value_type)
    if not string and not pt.is_integer(type_.value_type):
        remedy = ": make columns of its numbers" if is_number(type_.value_type) else ""
        return None, f"a list of {type_.value_type} cannot be a feature{remedy}"
    distinct = pc.count_distinct(flat).as_py()
    if distinct == 0:
        return None, "empty in all rows"
    longest = pc.max(pc.list_value_length(column)).as_py() or 1
    kind = {"type": "string" if string else "integer", "pooling": "mean"}
    bag = kind | {"max_length": next_power_of_two(longest)} | rare(distinct)
    return bag, f"lists of up to {longest} of {distinct:,} values"


def _integer(name: str, column: pa.ChunkedArray, distinct: int) -> tuple[dict[str, Any] | None, str]:
    low, high = (pc.min(column).as_py(), pc.max(column).as_py())
    if high > MAX_INT64:
        return None, "it has values beyond 2^63 - 1: write them as text"
    large = max(-low, high) > MAX_EXACT
    if ID.search(name) or large:
        if distinct > UNIQUE_SHARE * len(column):
            return None, f"{distinct:,} values in {len(column):,} rows: it identifies the row"
        why = "beyond 2^53, so an id" if large else "an id by its name"
        return {"type": "integer"} | rare(distinct), f"{why}, {distinct:,} values"
    if low >= 0 and high < FEW_VALUES and distinct > high / 2:
        return {"type": "integer", "cardinality": high + 1}, f"the integers 0 to {high}"
    return _number(column)


def _number(column: pa.ChunkedArray) -> tuple[dict[str, Any] | None, str]:
    values = floats(column)
    values = values[np.isfinite(values)]
    if not values.size:
        return None, "missing or infinite in all rows"
    low, high = float(values.min()), float(values.max())
    skewed = low >= 0 and high > 10 * max(float(np.median(values)), 1e-9)
    steps = ["log1p", "standardise"] if skewed else ["standardise"]
    why = "most small, some large" if skewed else "no long tail"
    return {"transform": steps}, f"a number from {low:g} to {high:g}, {why}"


def rare(distinct: int) -> dict[str, int]:
    return {"min_count": 2} if distinct > MANY_VALUES else {}


def _is_time_as_text(column: pa.ChunkedArray) -> bool:
    """Returns whether the first values all look like 2026-11-23 or 2026-11-23 18:00:00."""
    first = column.drop_null().slice(0, 100).to_pylist()
    try:
        return all("-" in value and datetime.fromisoformat(value) for value in first)
    except ValueError:
        return False


def _list_hint(column: pa.ChunkedArray) -> str:
    """Returns a hint if values may be lists, such as "spa|pool", where few parts form many values; else
    empty.
    """
    values = pc.unique(column).drop_null()
    for separator in SEPARATORS:
        share = pc.mean(pc.match_substring(values, separator).cast(pa.int8())).as_py() or 0.0
        parts = pc.count_distinct(pc.list_flatten(pc.split_pattern(values, separator))).as_py()
        if share >= LISTED_FROM and parts <= len(values) / 2:
            return f", {share:.0%} of them with '{separator}': if they are lists, write them as such"
    return ""


def _number_hint(column: pa.ChunkedArray) -> str:
    """Returns a hint if most values are numbers and others words, such as "n/a"; else empty."""
    values = pc.unique(column).drop_null()
    number = pc.match_substring_regex(values, r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
    share = pc.mean(number.cast(pa.int8())).as_py() or 0.0
    if not NUMBERS_FROM <= share < 1.0:
        return ""
    word = values.filter(pc.invert(number))[0].as_py()
    return f", most of them numbers, not {word[:30]!r}: if it is a number, write the others as missing"


def value_codes(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Returns int64 [rows], equal where the values are equal; null is a value."""
    array = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    found: np.ndarray[Any, Any] = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def share_seen_before(column: pa.ChunkedArray, time: pa.ChunkedArray) -> float:
    """Returns the share of the newest fifth of the rows whose value also occurs in an older row."""
    by_time = value_codes(column)[pc.sort_indices(time).to_numpy()]
    older, newest = np.split(by_time, [by_time.size * 4 // 5])
    return float(np.isin(newest, older).mean())


def is_text(type_: pa.DataType) -> bool:
    return bool(pt.is_string(type_) or pt.is_large_string(type_))


def is_number(type_: pa.DataType) -> bool:
    number = pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_)
    return bool(number or pt.is_boolean(type_))
