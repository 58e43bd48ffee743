from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.data.packed import clusters
from polyrec.models.data.packed import writer as packed_writer
from polyrec.models.data.packed.packing import Packed, pack
from polyrec.models.data.packed.reader import KEY, PackedReader
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import fit_splitter
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema, Split, load_schema

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], Path]
ToArrow = Callable[[Sequence[Row]], pa.Table]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches, files, row groups and partitions of a few rows."""
    monkeypatch.setattr(clusters, "ROWS", 4)
    monkeypatch.setattr(clusters, "PARTITION_ROWS", 6)
    monkeypatch.setattr(packed_writer, "ROW_GROUP_ROWS", 3)
    monkeypatch.setattr(packed_writer, "FILE_ROWS", 9)


def repeated(rows: list[Row], times: list[int]) -> list[Row]:
    """Each row several times, as candidates of one context."""
    return [r | {"item": f"i{i}"} for r, n in zip(rows, times, strict=True) for i in range(n)]


def requests_in(small_rows: Callable[..., Any]) -> st.SearchStrategy[list[Row]]:
    sizes = st.lists(st.integers(1, 5), min_size=1, max_size=8)
    return sizes.flatmap(
        lambda times: st.lists(small_rows(), min_size=len(times), max_size=len(times)).map(
            lambda rows: repeated(rows, times)
        )
    )


@pytest.mark.usefixtures("tiny")
def test_packed_rows_come_back_exactly_as_plain_rows(
    small: Schema, small_rows: Callable[..., Any], write: Write, tmp_path: Path
) -> None:
    """Requests that stand together or not, whose contexts change within or not."""

    @settings(max_examples=50)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        rows = data.draw(requests_in(small_rows))
        plain = open_data(write(rows), small)
        done = pack(plain, small, tmp_path / "packed", replace=True)
        packed = open_data(tmp_path / "packed", small)
        assert isinstance(packed, PackedReader)
        expected = [r for b in plain.batches(plain.columns) for r in b.to_pylist()]
        first = {row["request"]: i for i, row in reversed(list(enumerate(expected)))}
        expected.sort(key=lambda row: first[row["request"]])
        columns = data.draw(st.lists(st.sampled_from(plain.columns), min_size=1, unique=True))
        size = data.draw(st.integers(1, 9))
        batches = list(packed.batches(columns, size))
        assert [r for b in batches for r in b.to_pylist()] == [{c: r[c] for c in columns} for r in expected]
        assert [b.num_rows for b in batches[:-1]] == [size] * (len(batches) - 1)
        types = {name: b.column(name).type for b in plain.batches(columns) for name in columns}
        assert all(b.column(name).type == types[name] for b in batches for name in columns)
        assert packed.columns == plain.columns
        assert packed.rows_hint == done.rows == len(rows)
        assert done.requests == len(first)
        assert done.stored >= done.requests

    check()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "split",
    [
        Split(rule="time", columns=("request",), train=0.6, validation=0.4),
        Split(rule="hash", columns=("user", "item"), train=0.6, validation=0.3),
        Split(rule="column", columns=("part",)),
    ],
    ids=lambda s: s.rule,
)
def test_every_row_stays_in_its_split(
    split: Split, small: Schema, write: Write, tmp_path: Path, arrow: ToArrow
) -> None:
    random = np.random.default_rng(3)
    schema = small.model_copy(update={"split": split})
    rows = [
        {"request": int(r), "user": f"u{r % 3}", "item": f"i{i}", "clicked": 0}
        for i, r in enumerate(random.permutation(np.repeat(np.arange(9), 4)))
    ]
    part = pa.array(random.choice(["train", "validation", "test"], len(rows)))
    path = tmp_path / "plain.parquet"
    pq.write_table(arrow(rows).append_column("part", part), path)
    plain = open_data(path, schema)
    pack(plain, schema, tmp_path / "packed", cluster_by="user")
    packed = open_data(tmp_path / "packed", schema)
    splitter = fit_splitter(plain, schema)
    assert fit_splitter(packed, schema) == splitter
    columns = list(dict.fromkeys(["item", *split.columns]))
    of_item = [
        {
            item: int(label)
            for b in reader.batches(columns)
            for item, label in zip(b.column("item").to_pylist(), splitter(b), strict=True)
        }
        for reader in (plain, packed)
    ]
    assert of_item[0] == of_item[1]
    assert len(of_item[0]) == len(rows)
    assert len(set(of_item[0].values())) == 3


def test_sessions_are_contiguous_in_the_order_in_which_they_begin(
    small: Schema, write: Write, tmp_path: Path
) -> None:
    rows = [
        {"request": r, "user": u, "item": f"i{r}{k}", "clicked": 0}
        for r, u in enumerate("abacbba")
        for k in range(2)
    ]
    done = pack(open_data(write(rows), small), small, tmp_path / "p", cluster_by="user")
    assert done.moved
    packed = open_data(tmp_path / "p", small)
    users = [v for b in packed.batches(["user", "request"]) for v in b.to_pylist()]
    assert "".join(v["user"] for v in users[::2]) == "aaabbbc"
    assert [v["request"] for v in users[::2]] == [0, 2, 6, 1, 4, 5, 3]
    with pytest.raises(DataError, match="exists already"):
        pack(open_data(write(rows), small), small, tmp_path / "p")


def test_a_request_is_one_row_with_its_context_once(small: Schema, write: Write, tmp_path: Path) -> None:
    rows = [
        {"request": r, "user": f"u{r}", "tags": ["a", "b"], "item": f"i{k}", "clicked": int(k == 1)}
        for r in range(4)
        for k in range(3)
    ]
    done = pack(open_data(write(rows), small), small, tmp_path / "p")
    assert (done.requests, done.stored, done.rows, done.moved) == (4, 4, 12, False)
    (file,) = (tmp_path / "p").iterdir()
    table = pq.read_table(file)
    assert table["user"].to_pylist() == ["u0", "u1", "u2", "u3"]
    assert table["tags"].to_pylist() == [["a", "b"]] * 4
    assert table["item"].to_pylist() == [["i0", "i1", "i2"]] * 4
    assert table["clicked"].to_pylist() == [[0, 1, 0]] * 4
    about = json.loads(table.schema.metadata[KEY])
    assert about["for_schema"] == "small"
    assert about["group"] == "request"
    assert set(about["shared"]) == set(done.shared) == {"request", "age", "user", "last", "tags", "history"}


def test_other_columns_are_kept_and_shared_where_they_are_constant(
    small: Schema, arrow: ToArrow, tmp_path: Path
) -> None:
    rows = [{"request": i // 3, "user": "u", "item": f"i{i}", "clicked": 0} for i in range(12)]
    table = arrow(rows)
    table = table.append_column("session", pa.array([f"s{i // 6}" for i in range(12)]))
    table = table.append_column("row", pa.array(range(12)))
    table = table.append_column("junk", pa.array([[[i]] for i in range(12)]))
    pq.write_table(table, tmp_path / "f.parquet")
    done = pack(open_data(tmp_path / "f.parquet", small), small, tmp_path / "p")
    assert "session" in done.shared
    assert "row" in done.per_row
    assert done.left_out == ("junk",)
    packed = open_data(tmp_path / "p", small)
    (batch,) = packed.batches(["row", "session"])
    assert batch.to_pydict() == {"row": list(range(12)), "session": [f"s{i // 6}" for i in range(12)]}


def test_row_order_is_kept_if_requests_are_contiguous(tmp_path: Path) -> None:
    schema = load_schema("trivago")
    path = generate(tmp_path / "clicks.parquet", 5000, items=200, users=50).path
    plain = open_data(path, schema)
    done = pack(plain, schema, tmp_path / "p")
    packed = open_data(tmp_path / "p", schema)
    for a, b in zip(plain.batches(plain.columns, 999), packed.batches(plain.columns, 999), strict=True):
        assert a.equals(b)
    assert done.bytes == sum(f.stat().st_size for f in (tmp_path / "p").iterdir())
    assert done.bytes < 0.8 * path.stat().st_size
    groups = dict(done.repeats)
    assert any({"user_id", "city"} <= set(group) for group in groups)
    assert all(factor > 1 for factor in groups.values())


def test_precision_is_kept_where_single_would_lose_it(small: Schema, write: Write, tmp_path: Path) -> None:
    rows = [{"request": 0, "item": "i", "clicked": 0, "price": p, "age": 0.5} for p in (0.1, 1e300, -0.0)]
    pack(open_data(write(rows), small), small, tmp_path / "p")
    (file,) = (tmp_path / "p").iterdir()
    types = pq.read_schema(file)
    assert types.field("price").type.value_type == pa.float64()
    assert types.field("age").type == pa.float32()
    (batch,) = open_data(tmp_path / "p", small).batches(["price", "age"])
    assert [repr(p) for p in batch.column("price").to_pylist()] == ["0.1", "1e+300", "-0.0"]
    assert batch.column("age").type == pa.float64()


def test_packing_packed_data_changes_nothing(small: Schema, write: Write, tmp_path: Path) -> None:
    rows = [{"request": i % 3, "user": f"u{i % 3}", "item": f"i{i}", "clicked": 0} for i in range(9)]
    pack(open_data(write(rows), small), small, tmp_path / "a")
    again = pack(open_data(tmp_path / "a", small), small, tmp_path / "b")
    assert not again.moved
    tables = [pq.read_table(next((tmp_path / name).iterdir())) for name in "ab"]
    assert tables[0].equals(tables[1])


def refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(DataError) as error:
        pack(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_mistakes_are_one_line_and_leave_nothing(
    small: Schema, write: Write, tmp_path: Path, arrow: ToArrow
) -> None:
    rows: list[Row] = [{"request": 0, "user": "u", "item": "i", "clicked": 0}]
    reader = open_data(write(rows), small)
    out = tmp_path / "out"
    assert "has no group, so there is nothing to cluster" in refusal(
        reader, small.model_copy(update={"group": None}), out
    )
    assert "no column 'session' to cluster by; there are request" in refusal(
        reader, small, out, cluster_by="session"
    )
    assert "cannot cluster by 'item'" in refusal(reader, small, out, cluster_by="item")
    assert "cannot cluster by 'clicked'" in refusal(reader, small, out, cluster_by="clicked")
    assert "there are no rows" in refusal(open_data(write([]), small), small, out)
    bad = open_data(write([*rows, rows[0] | {"request": None}]), small)
    assert "column 'request': a value is missing" in refusal(bad, small, out)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    reader = open_data(write(rows), small)
    assert "cannot write" in refusal(reader, small, tmp_path / "file" / "out")


def test_only_packed_data_are_replaced(small: Schema, write: Write, tmp_path: Path) -> None:
    rows: list[Row] = [{"request": 0, "user": "u", "item": "i", "clicked": 0}]
    reader = open_data(write(rows), small)
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    assert "will not be replaced" in refusal(reader, small, out, replace=True)
    assert (out / "thesis.txt").exists()
    assert isinstance(pack(reader, small, tmp_path / "new", replace=True), Packed)


def test_malformed_rows_are_counted_and_left_out(small: Schema, write: Write, tmp_path: Path) -> None:
    rows: list[Row] = [
        {"request": i // 2, "item": f"i{i}", "clicked": None if i == 3 else 0, "price": 1.0} for i in range(8)
    ]
    reader = open_data(write(rows), small, "count")
    done = pack(reader, small, tmp_path / "p")
    assert done.rows == 7
    assert reader.malformed == 1
    items = [
        v for b in open_data(tmp_path / "p", small).batches(["item"]) for v in b.column("item").to_pylist()
    ]
    assert Counter(items) == Counter(f"i{i}" for i in range(8) if i != 3)
