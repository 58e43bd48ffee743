"""Converts rows in any common form to columns: feature -> one value (or list of values) per row.

Accepts a list of mappings (one per row), a mapping of columns (lists, NumPy arrays, series), and anything
with Arrow's C stream interface: pyarrow tables and batches, pandas and polars data frames. None of these
libraries is imported before rows of its kind arrive. NaN and nulls are missing values. Infinite numbers are
refused, as in training: JSON would send null. True and false are sent as 1 and 0, the form in which such
columns are trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from polyrec.client.errors import InvalidRequest

Columns = dict[str, Any]
"""Feature -> list or NumPy array of its values, all of one length."""
INFINITE = (float("inf"), float("-inf"))
Rows = Any
"""Rows of one of the forms above; a protocol that names them all would need all libraries."""


def columns_of(rows: Rows) -> Columns:
    """Returns the columns of rows; arrays stay arrays.

    Raises InvalidRequest for another form, a column that occurs twice, or an infinite number.
    """
    if isinstance(rows, Mapping):
        columns = {str(name): _column(values) for name, values in rows.items()}
    elif hasattr(rows, "__arrow_c_stream__"):
        columns = _arrow_columns(rows)
    elif isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        columns = _transposed(rows)
    else:
        raise InvalidRequest(
            f"rows are a {type(rows).__name__}; give a list of dicts, a dict of columns, "
            "or a pandas, polars or Arrow table"
        )
    for name, values in columns.items():
        _refuse_infinite(name, values)
    return columns


def context_of(context: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the values of one context, with NumPy values converted to Python's."""
    if context is None:
        return None
    if not isinstance(context, Mapping):
        raise InvalidRequest(f"the context is a {type(context).__name__}; give a dict: feature -> value")
    values = {str(name): _value(value) for name, value in context.items()}
    for name, value in values.items():
        _refuse_infinite(name, (value,))
    return values


def _refuse_infinite(name: str, values: Sequence[Any] | np.ndarray[Any, Any]) -> None:
    """Raises InvalidRequest for an infinite number in a column."""
    rows: list[int]
    if isinstance(values, np.ndarray):
        rows = np.flatnonzero(np.isinf(values)).tolist() if values.dtype.kind == "f" else []
    else:
        rows = [values.index(x) for x in INFINITE if x in values]
    if rows:
        row = min(rows)
        raise InvalidRequest(
            f"feature '{name}': {values[row]} is not a finite number (row {row}); correct it, or send None"
        )


def _column(values: Any) -> Any:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidRequest(
            f"a column is {type(values).__name__} {values!r:.40}; give a list with a value for each row"
        )
    array = getattr(values, "to_numpy", None)  # a pandas or polars series, an Arrow array
    if array is not None:
        values = array()
    if isinstance(values, np.ndarray):
        return values if _sent_as_array(values) else [_value(value) for value in values.tolist()]
    return [_value(value) for value in values]


def _sent_as_array(values: np.ndarray[Any, Any]) -> bool:
    """Returns whether the JSON library can write an array itself: contiguous native numbers, one per row."""
    number = values.dtype.kind in "iuf" and values.dtype.isnative
    return number and values.ndim == 1 and values.flags.c_contiguous


def _value(value: Any) -> Any:
    """Converts a row's value for JSON: NumPy values to Python's, arrays and series to lists, bools to 0
    and 1.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif hasattr(value, "to_list"):
        value = value.to_list()
    elif isinstance(value, tuple | set | frozenset):
        value = list(value)
    return int(value) if isinstance(value, bool) else value


def _transposed(rows: Sequence[Any]) -> Columns:
    """Returns the columns of a list of mappings; a feature that a row leaves out is missing there."""
    names: dict[str, None] = {}
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRequest(f"row {i} is a {type(row).__name__}; give a dict: feature -> value")
        names.update(dict.fromkeys(row))
    return {str(name): [_value(row.get(name)) for row in rows] for name in names}


def _arrow_columns(rows: Any) -> Columns:
    import pyarrow as pa

    try:
        if type(rows).__module__.partition(".")[0] == "pandas":
            # NaN becomes null, and the index is not a feature
            table = pa.Table.from_pandas(rows, preserve_index=False)
        else:
            table = pa.table(rows)
    except (pa.ArrowException, ValueError) as e:  # pandas: a plain ValueError for duplicate columns
        raise InvalidRequest(f"rows are no table: {e}") from None
    columns: Columns = {}
    if len(set(table.column_names)) < table.num_columns:
        twice = next(name for name in table.column_names if table.column_names.count(name) > 1)
        raise InvalidRequest(f"rows have column '{twice}' more than once")
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        if number and column.null_count == 0:
            columns[name] = np.ascontiguousarray(column.to_numpy())
        else:
            columns[name] = column.to_pylist()
    return columns
