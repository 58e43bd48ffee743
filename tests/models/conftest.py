"""A small schema with a feature of every kind, for tests of schema, encoder, readers and popularity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from polyrec.models.schema.schema import Schema

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], Path]

SMALL: dict[str, Any] = {
    "name": "small",
    "dense": [
        {"name": "age", "role": "context", "transform": ["log1p", "standardise"]},
        {"name": "price", "transform": ["standardise"], "missing": -1.0},
    ],
    "categorical": [
        {"name": "user", "role": "context"},
        {"name": "last", "role": "context", "table": "item", "min_count": 2},
        {"name": "tags", "role": "context", "pooling": "mean", "max_length": 3},
        {"name": "history", "role": "context", "table": "item", "min_count": 2, "pooling": "sum"},
        {"name": "item", "min_count": 2},
        {"name": "place", "type": "integer", "cardinality": 4},
        {"name": "code", "type": "integer", "max_values": 3},
        {"name": "extras", "type": "integer", "cardinality": 5, "pooling": "sum"},
    ],
    "label": {"column": "clicked"},
    "group": "request",
    "split": {"rule": "time", "columns": ["request"]},
}

ARROW = pa.schema(
    {
        "request": pa.int64(),
        "age": pa.float64(),
        "price": pa.float64(),
        "user": pa.string(),
        "last": pa.string(),
        "tags": pa.list_(pa.string()),
        "history": pa.list_(pa.string()),
        "item": pa.string(),
        "place": pa.int64(),
        "code": pa.int64(),
        "extras": pa.list_(pa.int64()),
        "clicked": pa.int64(),
    }
)

NUMBERS = st.floats(-100, 1e6, width=32)
NAMES = st.sampled_from(["", "a", "b", "ä", "日本", "a longer name", "z"])
CODES = st.integers(-3, 6)


def rows_of(dense_missing: bool = True) -> st.SearchStrategy[Row]:
    """One row; categorical values may be missing, unknown or repeated."""
    number = st.none() | NUMBERS if dense_missing else NUMBERS
    return st.fixed_dictionaries(
        {
            "request": st.integers(0, 5),
            "age": number,
            "price": number,
            "user": st.none() | NAMES,
            "last": st.none() | NAMES,
            "tags": st.lists(st.none() | NAMES, max_size=3),
            "history": st.none() | st.lists(NAMES, max_size=4),
            "item": NAMES,
            "place": st.none() | CODES,
            "code": st.none() | CODES | st.just(2**62),
            "extras": st.lists(CODES, max_size=3),
            "clicked": st.integers(0, 1),
        }
    )


@pytest.fixture(scope="session")
def small() -> Schema:
    """A schema with a feature of every kind."""
    return Schema.model_validate(SMALL)


@pytest.fixture(scope="session")
def small_rows() -> Callable[..., st.SearchStrategy[Row]]:
    """Strategy of rows for the schema `small`."""
    return rows_of


@pytest.fixture(scope="session")
def arrow() -> Callable[[Sequence[Row]], pa.Table]:
    """Rows of `small` -> an Arrow table."""
    return lambda rows: pa.Table.from_pylist(list(rows), ARROW)


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes rows of `small` to a Parquet file of its own, in small row groups."""
    folder = tmp_path_factory.mktemp("small")

    def write(rows: Sequence[Row]) -> Path:
        path = folder / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows), ARROW), path, row_group_size=7)
        return path

    return write
