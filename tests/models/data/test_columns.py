from __future__ import annotations

import datetime
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from polyrec.models.data.columns import ColumnKind, check_columns, column_kind, normalize_column
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("string", pa.array(["a", None], pa.large_string()), pa.array(["a", None])),
        ("string", pa.array(["a", None, "a"]).dictionary_encode(), pa.array(["a", None, "a"])),
        ("string", pa.array([None, None]), pa.array([None, None], pa.string())),
        ("integer", pa.array([1, None], pa.uint8()), pa.array([1, None])),
        ("integer", pa.array([1.0, math.nan]), pa.array([1, None])),
        ("integer", pa.array([True, None]), pa.array([1, None])),
        ("number", pa.array([1.5, math.nan, None], pa.float32()), pa.array([1.5, None, None])),
        ("number", pa.array([True, False]), pa.array([1.0, 0.0])),
        ("number", pa.array([Decimal("1.5")]), pa.array([1.5])),
        ("strings", pa.array([["a"], None], pa.large_list(pa.large_string())), pa.array([["a"], None])),
        ("integers", pa.array([[1, None], []], pa.list_(pa.int8())), pa.array([[1, None], []])),
        ("integers", pa.array([[1.0, math.nan]]), pa.array([[1, None]])),
        ("strings", pa.array([None]), pa.array([None], pa.list_(pa.string()))),
        ("key", pa.array([1], pa.int16()), pa.array([1])),
        ("key", pa.array([datetime.datetime(1970, 1, 2)], pa.timestamp("s")), pa.array([86400])),
        ("key", pa.array(["x"], pa.large_string()), pa.array(["x"])),
        ("key", pa.array([1, 2**64 - 1, None], pa.uint64()), pa.array([1, -1, None])),
        ("time", pa.array([7], pa.uint64()), pa.array([7])),
        ("integer", pa.array([Decimal(7), None]), pa.array([7, None])),
    ],
)
def test_columns_come_out_in_the_type_of_their_kind(
    kind: ColumnKind, values: pa.Array, expected: pa.Array
) -> None:
    got = normalize_column("f", "c", kind, values)
    assert got.type == expected.type
    assert got.equals(expected)


def test_a_list_column_keeps_its_rows_when_its_floats_become_integers() -> None:
    rows = [[9.0, 8.0], [1.0, math.nan], None, [3.0, 4.0]]
    for type_ in (pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 2)):
        values = pa.array(rows, type_).slice(1)
        assert normalize_column("f", "c", "integers", values).to_pylist() == [[1, None], [], [3, 4]]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (
            "string",
            pa.array([1]),
            "f: column 'c' is int64, the schema needs a string (or set `type: integer`",
        ),
        ("integer", pa.array(["a"]), "f: column 'c' is string, the schema needs an integer"),
        ("integer", pa.array([1.5]), "f: column 'c': Float value 1.500000 was truncated"),
        ("integer", pa.array([2**63], pa.uint64()), "f: column 'c': Integer value 9223372036854775808 not"),
        ("integer", pa.array([2**63], pa.uint64()), "write them as strings and set `type: string`"),
        (
            "number",
            pa.array([2**53 + 1]),
            "exact up to 2^53: make it a categorical feature, or write it as fl",
        ),
        ("integer", pa.array([1.0, 2.0**53, None]), "'c' is double and has 9007199254740992: from 9,007,199"),
        (
            "integer",
            pa.array([-(2.0**24)], pa.float32()),
            "from 16,777,216 on, different ids become the same",
        ),
        ("integers", pa.array([[1.0, 2.0**60], None]), "write integers (pandas: astype('Int64')"),
        ("integer", pa.array([Decimal("1.5")]), "f: column 'c': Rescaling Decimal"),
        ("number", pa.array(["1"]), "f: column 'c' is string, the schema needs a number (cast it when"),
        ("string", pa.array([b"x"]), "f: column 'c' is binary, the schema needs a string (cast it when"),
        ("string", pa.array([1.0]), "or set `type: integer` in the schema, if they are integers)"),
        ("time", pa.array([2**63], pa.uint64()), "f: column 'c': Integer value 9223372036854775808 not"),
        ("time", pa.array(["2026-11-26"]), "f: column 'c' is string, the schema needs a number or a time"),
        ("strings", pa.array(["a"]), "f: column 'c' is string, the schema needs a list of strings"),
        ("strings", pa.array([[1]]), "the schema needs a list of strings (or set `type: integer`"),
        ("integers", pa.array([["1"]]), "the schema needs a list of integers"),
        ("key", pa.array([[1]]), "the schema needs a string, an integer or a time"),
    ],
)
def test_a_column_that_does_not_fit_is_rejected_by_name(
    kind: ColumnKind, values: pa.Array, message: str
) -> None:
    with pytest.raises(DataError) as error:
        normalize_column("f", "c", kind, values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_column_is_named_and_the_others_listed() -> None:
    with pytest.raises(DataError, match="f: no column 'x'; the columns are a, b"):
        check_columns("f", ["a", "x"], ["a", "b"])


def test_kinds_follow_the_schema(small: Schema) -> None:
    kinds = {name: column_kind(small, name) for name in (*small.columns, "other")}
    assert kinds == {
        "age": "number",
        "price": "number",
        "user": "string",
        "last": "string",
        "tags": "strings",
        "history": "strings",
        "item": "string",
        "place": "integer",
        "code": "integer",
        "extras": "integers",
        "clicked": "number",
        "request": "time",
        "other": "key",
    }
