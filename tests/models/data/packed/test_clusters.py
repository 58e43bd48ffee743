from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.data.packed import clusters as module
from polyrec.models.data.packed.clusters import Clustering, KeyOccurrences, cluster_rows, survey
from polyrec.models.data.reader import open_data
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], Path]

COLUMNS = ("request", "user", "item", "tags")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and files of a few rows."""
    monkeypatch.setattr(module, "ROWS", 3)
    monkeypatch.setattr(module, "PARTITION_ROWS", 5)
    monkeypatch.setattr(module, "MERGE_FROM", 4)


def rows_of(keys: Sequence[tuple[int, str]]) -> list[Row]:
    return [
        {"request": request, "user": user, "item": str(i), "clicked": 0, "tags": ["a"] * (i % 3)}
        for i, (request, user) in enumerate(keys)
    ]


KEYS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), min_size=1, max_size=25)


def by_first_mention(rows: list[Row], *names: str) -> list[Row]:
    """The obvious order: clusters as they begin, requests as they begin inside them, then the data's."""
    keys = [tuple(row[n] for n in names) for row in rows]
    first = {key[:depth]: i for depth in (2, 1) for i, key in reversed(list(enumerate(keys)))}
    return sorted(
        rows, key=lambda row: [first[tuple(row[n] for n in names[: d + 1])] for d in range(len(names))]
    )


@pytest.mark.hypothesis
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("by", [None, "user"])
def test_clusters_are_contiguous_in_order_of_first_occurrence(
    by: str | None, small: Schema, write: Write, tmp_path: Path
) -> None:
    @given(KEYS)
    def check(keys: list[tuple[int, str]]) -> None:
        rows = rows_of(keys)
        reader = open_data(write(rows), small)
        clustering = Clustering("request", by)
        found = survey(reader, clustering)
        batches = list(cluster_rows(reader, COLUMNS, clustering, found, tmp_path))
        got = [row for b in batches for row in b.to_pylist()]
        names = ("request",) if by is None else (by, "request")
        expected = [{c: row[c] for c in COLUMNS} for row in by_first_mention(rows, *names)]
        assert got == expected
        assert all(0 < b.num_rows <= 3 for b in batches)
        assert found.rows == len(rows)
        assert found.requests == len({tuple(row[n] for n in names) for row in rows})
        assert found.contiguous == (expected == [{c: row[c] for c in COLUMNS} for row in rows])
        assert list(tmp_path.iterdir()) == []

    check()


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=6))
def test_mentions_tell_where_each_key_is_first_met(batches: list[list[int]]) -> None:
    mentions = KeyOccurrences()
    for batch in batches:
        mentions.add(np.array(batch, np.uint64))
    flat = [key for batch in batches for key in batch]
    keys, first, rows = mentions.table()
    assert keys.tolist() == sorted(set(flat))
    assert first.tolist() == [flat.index(key) for key in sorted(set(flat))]
    assert rows.tolist() == [flat.count(key) for key in sorted(set(flat))]
    runs = 1 + sum(a != b for a, b in pairwise(flat))
    assert mentions.runs == runs
    assert mentions.contiguous == (runs == len(set(flat)))


@pytest.mark.parametrize(("by", "column"), [(None, "request"), ("user", "user")])
def test_a_row_without_a_key_is_rejected(by: str | None, column: str, small: Schema, write: Write) -> None:
    rows = rows_of([(0, "a"), (1, "b")])
    rows[1][column] = None
    with pytest.raises(DataError, match=f"column '{column}': a value is missing"):
        survey(open_data(write(rows), small), Clustering("request", by))


def test_data_without_rows_are_rejected(small: Schema, write: Write) -> None:
    with pytest.raises(DataError, match="there are no rows"):
        survey(open_data(write([]), small), Clustering("request"))


def test_memory_does_not_grow_with_the_data(
    small: Schema, arrow: Callable[[Sequence[Row]], pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 1000)
    monkeypatch.setattr(module, "PARTITION_ROWS", 4000)
    # requests of 2,000 rows, each met again and again up to the end of its tenth of the data
    keys = [(tenth * 10 + i % 10, "a" * 300) for tenth in range(10) for i in range(8000)]
    pq.write_table(arrow(rows_of(keys)), tmp_path / "f.parquet", row_group_size=2000)
    reader = open_data(tmp_path / "f.parquet", small)
    clustering = Clustering("request")
    found = survey(reader, clustering)
    assert not found.contiguous
    before, most, total = pa.total_allocated_bytes(), 0, 0
    for batch in cluster_rows(reader, COLUMNS, clustering, found, tmp_path):
        most = max(most, pa.total_allocated_bytes() - before)
        total += batch.num_rows
    assert total == 80_000
    assert most < 80_000 * 300 / 3
