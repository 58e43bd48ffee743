"""Features of the request do not depend on where the rows of a request stand in the data."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data import growing_array, request_columns
from polyrec.models.data.packed.packing import pack
from polyrec.models.data.reader import DataReader, open_data
from polyrec.models.data.request_columns import with_request_features
from polyrec.models.data.requests import concat_batches
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema, load_schema

SCHEMA = load_schema("trivago")
NAMES = tuple(r.name for r in SCHEMA.request)


def read(reader: DataReader, rows: int = 1000) -> np.ndarray[Any, np.dtype[np.float64]]:
    """All features of the request, [rows, features]."""
    data = concat_batches(list(reader.batches((*NAMES, "item"), rows)))
    return np.column_stack([data.column(name).to_numpy(zero_copy_only=False) for name in NAMES])


@pytest.fixture
def expected(clicks: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Each request computed alone."""
    table = pq.read_table(clicks)
    group = table["request_id"].to_numpy()
    parts = []
    for start, end in pairwise(np.flatnonzero(np.r_[True, group[1:] != group[:-1], True]).tolist()):
        (batch,) = table.slice(start, end - start).drop(["request_id"]).combine_chunks().to_batches()
        found = with_request_features(SCHEMA, batch)
        parts.append(np.column_stack([found.column(name).to_numpy(zero_copy_only=False) for name in NAMES]))
    return np.vstack(parts)


def test_the_reader_computes_each_request_of_its_own_rows(
    clicks: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.testing.assert_allclose(read(open_data(clicks, SCHEMA)), expected, rtol=1e-6)
    monkeypatch.setattr(request_columns, "ROWS", 100)
    np.testing.assert_allclose(read(open_data(clicks, SCHEMA), 77), expected, rtol=1e-6)


def test_rows_of_a_request_may_be_apart_and_in_several_files(
    clicks: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    table = pq.read_table(clicks)
    group = np.random.default_rng(0).permutation(table["request_id"].to_numpy())
    rows = np.empty(group.size, np.int64)
    # each request's rows stay in order
    rows[np.argsort(group, kind="stable")] = np.arange(group.size)
    shuffled = table.take(pa.array(rows))
    for i in range(3):
        pq.write_table(shuffled.slice(i * 2000, 2000), tmp_path / f"{i}.parquet", row_group_size=300)
    np.testing.assert_allclose(read(open_data(tmp_path, SCHEMA)), expected[rows], rtol=1e-6)


def test_packed_data_have_the_same_features(clicks: Path, expected: np.ndarray, tmp_path: Path) -> None:
    pack(open_data(clicks, SCHEMA), SCHEMA, tmp_path / "packed")
    reader = open_data(tmp_path / "packed", SCHEMA)
    np.testing.assert_allclose(read(reader), expected, rtol=1e-6)
    assert isinstance(reader, request_columns.RequestReader)
    assert reader.shares_context
    parts = list(reader.requests((*SCHEMA.columns, *NAMES)))
    found = np.vstack(
        [np.column_stack([p.per_row.column(n).to_numpy(zero_copy_only=False) for n in NAMES]) for p in parts]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_columns_larger_than_memory_are_stored_in_files(
    clicks: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(request_columns, "MEMORY_BYTES", 1000)
    monkeypatch.setattr(growing_array.tempfile, "tempdir", str(tmp_path))
    reader = open_data(clicks, SCHEMA)
    np.testing.assert_allclose(read(reader), expected, rtol=1e-6)
    assert list(tmp_path.iterdir())
    del reader
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("name", ["group", "features"])
def test_a_feature_may_have_any_name(
    name: str,
    spilled: bool,
    clicks: Path,
    expected: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if spilled:
        monkeypatch.setattr(request_columns, "MEMORY_BYTES", 1000)
    table = pq.read_table(clicks)
    names = [name if column == "price" else column for column in table.column_names]
    pq.write_table(table.rename_columns(names), tmp_path / "f.parquet")
    schema = Schema.model_validate_json(SCHEMA.model_dump_json().replace('"price"', f'"{name}"'))
    np.testing.assert_allclose(read(open_data(tmp_path / "f.parquet", schema)), expected, rtol=1e-6)


def test_a_row_without_a_group_is_refused(clicks: Path, tmp_path: Path) -> None:
    table = pq.read_table(clicks).slice(0, 30)
    group = table["request_id"].to_pylist()
    group[3] = None
    at = table.column_names.index("request_id")
    pq.write_table(table.set_column(at, "request_id", pa.array(group, pa.int64())), tmp_path / "f.parquet")
    with pytest.raises(DataError, match="'request_id': a value is missing"):
        read(open_data(tmp_path / "f.parquet", SCHEMA))
