"""Converts columns of a data file to the few Arrow types that the schema uses.

Files come with many types (large strings, 8-bit integers, floats that represent integers). The output is
string, int64, float64, or a list of one of the first two, with missing values as nulls. Values that cannot be
converted without loss raise an error that names the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema

ColumnKind = Literal["number", "string", "integer", "strings", "integers", "key", "time"]

TARGET: dict[str, pa.DataType] = {
    "number": pa.float64(),
    "string": pa.string(),
    "integer": pa.int64(),
    "strings": pa.list_(pa.string()),
    "integers": pa.list_(pa.int64()),
}


def column_kind(schema: Schema, column: str) -> ColumnKind:
    """Returns the kind of a column.

    time: the column of a split by time, whose order matters. A column that the schema does not mention is a
    key, of which only equality matters; it is kept nearly unchanged.
    """
    for feature in schema.categorical:
        if feature.name == column:
            if feature.multi:
                return "strings" if feature.type == "string" else "integers"
            return feature.type
    numbers = [*(d.name for d in schema.dense), schema.label.column]
    if column in numbers:
        return "number"
    return "time" if schema.split.rule == "time" and column in schema.split.columns else "key"


def check_columns(where: str, wanted: Sequence[str], there: Sequence[str]) -> None:
    """Raises DataError naming the first wanted column that is absent, and listing the columns."""
    for name in wanted:
        if name not in there:
            raise DataError(f"{where}: no column '{name}'; the columns are {', '.join(there)}")


def check_type(where: str, column: str, kind: ColumnKind, type_: pa.DataType) -> None:
    """Raises DataError if a column's type can never hold what the schema says."""
    if pt.is_dictionary(type_):
        type_ = type_.value_type
    if not _fits(kind, type_):
        needs = {
            "number": "a number",
            "string": "a string",
            "integer": "an integer",
            "strings": "a list of strings",
            "integers": "a list of integers",
            "key": "a string, an integer or a time",
            "time": "a number or a time",
        }[kind]
        raise DataError(
            f"{where}: column '{column}' is {type_}, the schema needs {needs}{_remedy(kind, type_)}"
        )


def check_alike(where: str, column: str, type_: pa.DataType, first: str, first_type: pa.DataType) -> None:
    """Raises DataError if the values of a key or time in one file cannot be compared with those in another.

    type_, first_type: as stored. Dates and timestamps are comparable in any unit, see `in_unit_of`.
    """
    types = [t.value_type if pt.is_dictionary(t) else t for t in (type_, first_type)]
    dated = [pt.is_timestamp(t) or pt.is_date(t) for t in types]
    temporal = any(pt.is_temporal(t) for t in types)
    alike = types[0] == types[1] if temporal else _key_type(types[0]) == _key_type(types[1])
    if alike or all(dated):
        return
    raise DataError(
        f"{where}: column '{column}' is {type_}, but {first_type} in '{first}'; write it alike in all files"
    )


def in_unit_of(values: pa.Array, first_type: pa.DataType) -> pa.Array:
    """Converts dates and timestamps to the unit of the first file, in which times are compared.

    Raises ArrowInvalid for a time that this unit cannot represent, such as the year 9999 in nanoseconds.
    """
    if pt.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pt.is_dictionary(first_type):
        first_type = first_type.value_type
    temporal = pt.is_timestamp(values.type) or pt.is_date(values.type)
    if not temporal or values.type == first_type:
        return values
    return values.cast(options=pc.CastOptions(first_type, allow_time_truncate=True))


def _fits(kind: ColumnKind, type_: pa.DataType) -> bool:
    if pt.is_null(type_):
        return True
    number = pt.is_integer(type_) or pt.is_floating(type_) or pt.is_boolean(type_)
    string = pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_)
    if kind == "number":
        return bool(number or pt.is_decimal(type_))
    if kind == "string":
        return bool(string)
    if kind == "integer":
        return bool(number or pt.is_decimal(type_))
    if kind == "time":
        return bool(number or pt.is_temporal(type_))
    if kind == "key":
        return bool(number or string or pt.is_temporal(type_))
    lists = pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_)
    return bool(lists) and _fits("string" if kind == "strings" else "integer", type_.value_type)


def _remedy(kind: ColumnKind, type_: pa.DataType) -> str:
    """Returns a hint about a type that does not fit, in brackets; empty if there is no simple remedy."""
    lists = kind in ("strings", "integers")
    if lists and not (pt.is_list(type_) or pt.is_large_list(type_)):
        return ""
    one = type_.value_type if lists else type_
    if kind in ("string", "strings"):
        if pt.is_integer(one):
            return " (or set `type: integer` in the schema)"
        if pt.is_floating(one):
            return " (or set `type: integer` in the schema, if they are integers)"
    if pt.is_nested(one):
        return ""
    return " (cast it when the file is written)"


def normalize_column(where: str, column: str, kind: ColumnKind, values: pa.Array) -> pa.Array:
    """Converts a column to the type of its kind, missing values to nulls.

    Raises DataError if a value does not fit.
    """
    check_type(where, column, kind, values.type)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pt.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pt.is_date32(values.type):
        # Arrow casts dates (days since 1970) to int64 only via int32
        values = values.cast(pa.int32())
    if kind == "key" and pt.is_uint64(values.type):
        # hashes use all 64 bits; reinterpreted as int64, equal hashes stay equal
        values = values.view(pa.int64())
    target = _key_type(values.type) if kind in ("key", "time") else TARGET[kind]
    if pt.is_null(values.type):
        return pa.nulls(len(values), target)
    if pt.is_list(target) and pt.is_floating(values.type.value_type):
        # a missing list becomes an empty one, which is the same bag
        lengths = values.cast(pa.list_(pa.float64())).value_lengths().fill_null(0).to_numpy()
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
        values = pa.ListArray.from_arrays(offsets, _nan_to_null(values.flatten()))
    elif pt.is_floating(values.type):
        values = _nan_to_null(values)
    if kind in ("integer", "integers"):
        _require_exact(where, column, values)
    try:
        return values if values.type == target else values.cast(target)
    except pa.ArrowInvalid as e:
        raise DataError(
            f"{where}: column '{column}': {str(e).splitlines()[0]}{_too_large(kind, e)}"
        ) from None


def _require_exact(where: str, column: str, values: pa.Array) -> None:
    """Raises DataError for ids stored as floats so large that different integers are the same float."""
    flat = values.flatten() if pt.is_list(values.type) or pt.is_large_list(values.type) else values
    if not pt.is_floating(flat.type):
        return
    exact = {16: 2**11, 32: 2**24, 64: 2**53}[flat.type.bit_width]
    largest = pc.max(pc.abs(flat.cast(pa.float64()))).as_py()
    if largest is not None and largest >= exact:
        raise DataError(
            f"{where}: column '{column}' is {flat.type} and has {largest:.0f}: from {exact:,} on, different "
            "ids become the same; write integers (pandas: astype('Int64') before values are missing) or text"
        )


def _too_large(kind: ColumnKind, error: pa.ArrowInvalid) -> str:
    """Returns the remedy for an integer that does not fit; empty for other errors."""
    if kind == "number" and str(error).startswith("Integer value"):
        return "; a number is exact up to 2^53: make it a categorical feature, or write it as float64"
    if "uint64" in str(error) or str(error).startswith("Integer value"):
        return "; beyond 2^63 - 1, write them as strings and set `type: string` in the schema"
    return ""


def _key_type(type_: pa.DataType) -> pa.DataType:
    if pt.is_floating(type_):
        return pa.float64()
    if pt.is_integer(type_) or pt.is_boolean(type_) or pt.is_temporal(type_):
        return pa.int64()
    return pa.string()


def _nan_to_null(values: pa.Array) -> pa.Array:
    nan = pc.is_nan(values)
    return pc.if_else(nan, pa.scalar(None, values.type), values) if pc.any(nan).as_py() else values


def countable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Casts a column to a type that Arrow's kernels can count: no dictionaries, views or fixed-size lists."""
    type_ = column.type
    if pt.is_dictionary(type_):
        return countable(column.cast(type_.value_type))
    if pt.is_string_view(type_):
        return column.cast(pa.string())
    lists = pt.is_fixed_size_list(type_) or pt.is_large_list(type_)
    return column.cast(pa.list_(type_.value_type)) if lists else column


def floats(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Converts a column to float64 [rows], NaN where missing. Integers beyond 2^53 are rounded."""
    values: np.ndarray[Any, Any] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values
