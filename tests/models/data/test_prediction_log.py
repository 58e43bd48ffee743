"""Requests of a prediction log are read with the labels that came in their window."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data.packed.reader import PackedReader
from polyrec.models.data.prediction_log import (
    CLOCKS_S,
    FEEDBACK,
    HOUR,
    LABEL_COLUMNS,
    LOG_COLUMNS,
    MAX_JOINED,
    POSITIVE,
    RULES,
    LogRules,
    PredictionLogReader,
    is_prediction_log,
    label_files_of,
    load_rules,
    stored_names,
    stored_types,
)
from polyrec.models.data.reader import open_data
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Label, Schema, Split

NOON_S = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()
HOUR_S = 3600.0
SCHEMA = Schema.model_validate(
    {
        "name": "clicks",
        "dense": [{"name": "price"}],
        "categorical": [
            {"name": "user", "role": "context"},
            {"name": "recent", "role": "context", "table": "item", "pooling": "mean"},
            {"name": "item"},
        ],
        "label": {"column": "clicked"},
        "group": "request",
        "split": {"rule": "time", "columns": ["at"]},
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / RULES).write_text(
        LogRules(for_schema="clicks", features=stored_names(SCHEMA), window_s=600).model_dump_json()
    )
    return tmp_path


def answered(
    request_id: str, seconds: float, items: Sequence[str | None], user: str = "u", row: int = 0
) -> dict[str, Any]:
    """A stored row, answered some seconds after noon. row: its place in the request."""
    at_us = int(1e6 * (NOON_S + seconds))
    return {
        "log.time": at_us,
        "log.key": at_us << 12,
        "log.row": row,
        "log.request_id": request_id,
        "log.path": "table@cpu",
        "log.version": "v",
        "log.reason": None,
        "log.scores": [0.5] * len(items),
        "user": user,
        "recent": ["x", "y"],
        "price": [float(i) for i in range(len(items))],
        "item": list(items),
    }


def label(request_id: str, row: int, value: float, seconds: float | None) -> dict[str, Any]:
    at = None if seconds is None else int(1e6 * (NOON_S + seconds))
    return {"request_id": request_id, "row": row, "label": value, "time": at}


def write(
    folder: Path, kind: str, hour: str, rows: Sequence[Mapping[str, Any]], name: str = "part-0"
) -> None:
    columns = (
        LABEL_COLUMNS if kind == "feedback" else pa.schema([*LOG_COLUMNS, *stored_types(SCHEMA).items()])
    )
    file = folder / kind / hour / f"{name}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), columns), file)


def read(folder: Path, now_s: float = NOON_S + 10 * HOUR_S) -> list[dict[str, Any]]:
    reader = PredictionLogReader(folder, SCHEMA, now_s=now_s)
    return [row for batch in reader.batches(reader.columns) for row in batch.to_pylist()]


def clicked(folder: Path, now_s: float = NOON_S + 10 * HOUR_S) -> dict[str, float]:
    return {row["item"]: row["clicked"] for row in read(folder, now_s)}


@pytest.mark.parametrize("group", ["user", "item", None])
def test_the_group_may_be_a_feature_of_either_role_or_absent(group: str | None, folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("a", 0, ["p", "q"])])
    schema = Schema.model_validate(SCHEMA.model_dump() | {"group": group})
    reader = PredictionLogReader(folder, schema, now_s=NOON_S + 10 * HOUR_S)
    (batch,) = reader.batches(["user", "recent", "item"])
    assert [(row["user"], row["item"]) for row in batch.to_pylist()] == [("u", "p"), ("u", "q")]


def test_rows_have_the_features_and_the_labels_of_their_request(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r1", 1, "ab"), answered("r2", 2, "cde", user="v")])
    write(folder, "feedback", "2026-11-23T12", [label("r2", 1, 1, 30), label("r1", 0, 0, 31)])
    rows = read(folder)
    assert [row["item"] for row in rows] == list("abcde")
    assert [row["clicked"] for row in rows] == [0, 0, 0, 1, 0]
    assert [row["user"] for row in rows] == ["u", "u", "v", "v", "v"]
    assert [row["price"] for row in rows] == [0, 1, 0, 1, 2]
    assert rows[0]["recent"] == ["x", "y"]
    keys = [int(1e6 * (NOON_S + s)) << 12 for s in (1, 1, 2, 2, 2)]
    assert [row["at"] for row in rows] == [row["request"] for row in rows] == keys


def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no prediction log '.*': there is no log.json"):
        load_rules(tmp_path)


def test_labels_are_positive_where_those_of_the_data_are_ratings(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r1", 1, "ab")])
    write(folder, "feedback", "2026-11-23T12", [label("r1", 1, 1, 30)])
    schema = SCHEMA.model_copy(update={"label": Label(column="clicked", positive_above=3)})
    reader = PredictionLogReader(folder, schema, now_s=NOON_S + 10 * HOUR_S)
    rows = [row["clicked"] for batch in reader.batches(["clicked"]) for row in batch.to_pylist()]
    assert [rating > 3 for rating in rows] == [False, True]


def test_the_log_of_a_schema_without_a_group_is_read(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r1", 1, "ab"), answered("r2", 2, "cde")])
    write(folder, "feedback", "2026-11-23T12", [label("r2", 1, 1, 30)])
    split = Split(rule="hash", columns=("user", "item"))
    schema = SCHEMA.model_copy(update={"group": None, "split": split})
    reader = PredictionLogReader(folder, schema, now_s=NOON_S + 10 * HOUR_S)
    names = ["user", "item", "clicked"]
    found = [row for batch in reader.batches(reader.columns) for row in batch.to_pylist()]
    assert [[row[name] for name in names] for row in found] == [
        [row[name] for name in names] for row in read(folder)
    ]


def test_a_label_counts_within_the_window_in_later_hours_too(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 3590, "abc")])
    write(folder, "feedback", "2026-11-23T13", [label("r", 0, 1, 3590 + 599), label("r", 1, 1, 3590 + 601)])
    assert clicked(folder) == {"a": 1, "b": 0, "c": 0}


def test_a_label_of_a_clock_that_is_behind_counts_across_the_hour_too(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 20, "ab")])
    early = [label("r", row, 1, at) | {"client": "shop"} for row, at in ((0, -30), (1, -50))]
    write(folder, "feedback", "2026-11-23T11", early)
    assert clicked(folder) == {"a": 1, "b": 0}


def test_a_label_without_a_value_neither_counts_nor_replaces_one(folder: Path) -> None:
    rules = LogRules(for_schema="clicks", features=stored_names(SCHEMA), window_s=600, unlabeled="leave_out")
    (folder / RULES).write_text(rules.model_dump_json())
    write(folder, "requests", "2026-11-23T12", [answered("r", 0, "ab"), answered("s", 0, "c")])
    absent = [label(id_, 0, 1, 20) | {"label": None} for id_ in "rs"]
    write(folder, "feedback", "2026-11-23T12", [label("r", 0, 1, 10), *absent])
    assert clicked(folder) == {"a": 1, "b": 0}


def test_requests_of_several_hours_in_one_file_get_the_labels_of_each(folder: Path) -> None:
    rows = [answered(item, HOUR_S * hour, [item]) for hour, item in enumerate("abc")]
    write(folder, "requests", "2026-11-23T12", rows)
    for hour, item in enumerate("abc"):
        write(folder, "feedback", f"2026-11-23T{12 + hour}", [label(item, 0, 1, HOUR_S * hour + 9)])
    assert clicked(folder) == {"a": 1, "b": 1, "c": 1}


def test_the_later_of_two_labels_of_a_row_counts(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 0, "a")])
    write(folder, "feedback", "2026-11-23T12", [label("r", 0, 0, 20), label("r", 0, 1, 10)])
    assert clicked(folder) == {"a": 0}


def test_a_clients_label_is_of_no_request_that_was_answered_later(folder: Path) -> None:
    """A client that repeats the id of a request with labels gives none of its own rows a label."""
    rows = [answered("r", 0, "a"), answered("r", 100, "b"), answered("s", 100, "c"), answered("t", 100, "d")]
    write(folder, "requests", "2026-11-23T12", rows)
    given = [label("r", 0, 1, 20), label("s", 0, 1, 95)]
    of_operator = label("t", 0, 1, 20)  # whose times may be of another clock, or cut to the hour
    write(folder, "feedback", "2026-11-23T12", [*({**one, "client": "shop"} for one in given), of_operator])
    assert clicked(folder) == {"a": 1, "b": 0, "c": 1, "d": 1}


def test_labels_of_unknown_requests_and_rows_are_ignored(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 0, "a")])
    write(
        folder, "feedback", "2026-11-23T12", [label("s", 0, 1, 1), label("r", 1, 1, 1), label("r", -1, 1, 1)]
    )
    assert clicked(folder) == {"a": 0}
    reader = PredictionLogReader(folder, SCHEMA, now_s=NOON_S + 10 * HOUR_S)
    assert reader.notes == ()
    for _ in range(2):  # of the latest pass; a label of another request may be of one outside the period
        list(reader.batches(reader.columns))
        assert reader.notes == (
            "labels of rows that their request lacks: 2 (rows count from 0 in its order)",
        )


def test_files_of_labels_from_elsewhere_need_no_time(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 0, "ab")])
    labels = pa.table({"request_id": ["r"], "row": [1], "label": [1]})
    (folder / "feedback").mkdir()
    pq.write_table(labels, folder / "feedback" / "orders.parquet")
    assert clicked(folder) == {"a": 0, "b": 1}


def test_times_of_labels_may_be_finer_than_the_logs_and_are_no_plain_integers(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 0, "ab")])
    (folder / "feedback").mkdir()

    def put(times: pa.Array) -> None:
        labels = pa.table({"request_id": ["r", "r"], "row": [0, 1], "label": [1, 1], "time": times})
        pq.write_table(labels, folder / "feedback" / "orders.parquet")

    within_ns, late_ns = int(NOON_S) * 10**9 + 1, (int(NOON_S) + 10**6) * 10**9 + 1
    put(pa.array([within_ns, late_ns], pa.timestamp("ns", tz="UTC")))
    assert clicked(folder) == {"a": 1, "b": 0}
    put(pa.array([int(NOON_S), int(NOON_S) + 10**6]))
    with pytest.raises(DataError, match=r"orders\.parquet': column 'time' has int64"):
        read(folder)


def test_plain_rows_of_one_request_are_counted_through(folder: Path) -> None:
    rows = [answered("r", 0, "a"), answered("r", 0, "b", user="v", row=1), answered("s", 0, "c")]
    write(folder, "requests", "2026-11-23T12", rows)
    write(folder, "feedback", "2026-11-23T12", [label("r", 1, 1, 1), label("s", 0, 1, 1)])
    assert clicked(folder) == {"a": 0, "b": 1, "c": 1}


def test_requests_of_one_id_all_get_its_labels_and_others_none(folder: Path) -> None:
    rows = [answered("r", 0, "ab"), answered("s", 0, "cd"), answered("r", 60, "ef")]
    write(folder, "requests", "2026-11-23T12", rows)
    write(folder, "feedback", "2026-11-23T12", [label("r", 0, 1, 90), label("r", 3, 1, 90)])
    assert clicked(folder) == {"a": 1, "b": 0, "c": 0, "d": 0, "e": 1, "f": 0}


def test_requests_whose_window_is_open_are_left_out(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 0, "a"), answered("s", 60, "b")])
    assert clicked(folder, NOON_S + 630) == {"a": 0}
    with pytest.raises(DataError, match="has no request that is older than the 600 s"):
        read(folder, NOON_S)


def test_requests_without_labels_may_be_left_out(folder: Path) -> None:
    rules = LogRules(for_schema="clicks", features=stored_names(SCHEMA), window_s=600, unlabeled="leave_out")
    (folder / RULES).write_text(rules.model_dump_json())
    plain = [answered("s", 0, "c"), answered("s", 0, "d", row=1)]
    write(folder, "requests", "2026-11-23T12", [answered("r", 0, "ab"), answered("q", 0, "x"), *plain])
    write(folder, "feedback", "2026-11-23T12", [label("r", 0, 0, 1), label("s", 1, 1, 1)])
    assert clicked(folder) == {"a": 0, "b": 0, "c": 0, "d": 1}


@pytest.mark.parametrize("max_joined", [MAX_JOINED, 3])
def test_labels_equal_a_slow_join_on_random_logs(
    max_joined: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrec.models.data.prediction_log.MAX_JOINED", max_joined)
    random = np.random.default_rng(0)
    hours = ["2026-11-23T12", "2026-11-23T13", "2026-11-23T14"]
    requests: list[list[dict[str, Any]]] = [[], [], []]
    labels: list[list[dict[str, Any]]] = [[], [], [], []]
    expected: dict[str, float] = {}
    for i in range(400):
        at = float(random.uniform(0, 3 * HOUR_S))
        size = int(random.integers(1, 6))
        requests[int(at // HOUR_S)].append(answered(f"r{i}", at, [f"{i}.{j}" for j in range(size)]))
        expected |= {f"{i}.{j}": 0.0 for j in range(size)}
        last: dict[int, float] = {}
        for _ in range(int(random.integers(0, 4))):
            row, value, after = int(random.integers(0, 7)), float(random.random()), random.uniform(0, 900)
            labels[int((at + after) // HOUR_S)].append(label(f"r{i}", row, value, at + after))
            if row < size and after <= 600 and after > last.get(row, -1):
                last[row] = after
                expected[f"{i}.{row}"] = value
    for hour, rows in zip(hours, requests, strict=True):
        random.shuffle(rows)
        write(folder, "requests", hour, rows[:50])
        write(folder, "requests", hour, rows[50:], "part-1")
    for hour, given in zip([*hours, "2026-11-23T15"], labels, strict=True):
        write(folder, "feedback", hour, given)
    assert clicked(folder) == {item: value > POSITIVE for item, value in expected.items()}


def test_label_files_are_those_of_the_hours_and_of_folders_that_name_none(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    first = datetime(2026, 11, 23, 12, tzinfo=UTC)
    assert label_files_of(tmp_path, first, first, timedelta()) == []
    hours = [(first + timedelta(hours=n)).strftime(HOUR) for n in range(-6, 7)]
    places = [*hours, *(f"other/{hour}" for hour in hours), "", "other", "2026-11-23", f"{hours[0]}/later"]
    for place in places:
        (tmp_path / FEEDBACK / place).mkdir(parents=True, exist_ok=True)
        for name in ("a.parquet", ".b.parquet.partial", "c.txt"):
            (tmp_path / FEEDBACK / place / name).touch()
    for _ in range(50):
        begin, length, window = (float(x) for x in random.integers(-300, 300, 3))
        since = first + timedelta(minutes=begin)
        last, after = since + timedelta(minutes=abs(length)), timedelta(minutes=abs(window))
        earliest = (since - timedelta(seconds=CLOCKS_S)).strftime(HOUR)
        until = (last + after).strftime(HOUR)
        expected = [
            file
            for file in (tmp_path / FEEDBACK).rglob("*.parquet")
            if all(part not in hours or earliest <= part <= until for part in file.parts)
        ]
        assert label_files_of(tmp_path, since, last, after) == sorted(expected)


def test_requests_that_all_have_one_id_take_no_memory_for_each_pair_with_a_label(folder: Path) -> None:
    requests = [answered("same", i / 10, [f"{i}"]) for i in range(3000)]
    write(folder, "requests", "2026-11-23T12", requests)
    no_row = {"request_id": "same", "row": None, "label": 1.0, "time": None}
    labels = [label("same", 0, i % 2, 400 + i / 100) for i in range(3000)]
    write(folder, "feedback", "2026-11-23T12", [*labels, no_row])
    tracemalloc.start()
    assert set(clicked(folder).values()) == {1.0}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6  # nine million pairs of some numbers each


def test_a_log_is_read_as_data_and_shares_contexts(folder: Path) -> None:
    write(folder, "requests", "2020-01-01T00", [answered("r", 0, "ab") | {"log.time": 1577836800_000000}])
    reader = open_data(folder, SCHEMA)
    assert isinstance(reader, PackedReader)
    assert reader.shares_context
    assert reader.rows_hint == 2
    (requests,) = reader.requests(["user", "item", "clicked"])
    assert requests.lengths.tolist() == [2]
    assert requests.shared.column("user").to_pylist() == ["u"]


def test_a_period_of_a_log_is_of_the_times_of_its_answers(folder: Path) -> None:
    for hour in range(4):
        rows = [answered(f"{hour}.{m}", hour * HOUR_S + 60 * m, [f"{hour}.{m}"]) for m in (0, 20, 40)]
        write(folder, "requests", f"2026-11-23T{12 + hour}", rows)
    write(folder, "feedback", "2026-11-23T13", [label("1.20", 0, 1, HOUR_S + 1230)])
    now_s = NOON_S + 10 * HOUR_S
    schema = SCHEMA.model_copy(update={"split": Split(rule="hash", columns=("item",))})
    for of, at in ((SCHEMA, "at"), (schema, "item")):
        reader = PredictionLogReader(
            folder, of, now_s=now_s, since="2026-11-23T13:20", until="2026-11-23T15:20+00:00"
        )
        rows = [row for batch in reader.batches(["item", "clicked", at]) for row in batch.to_pylist()]
        assert [row["item"] for row in rows] == ["1.20", "1.40", "2.0", "2.20", "2.40", "3.0"]
        assert [row["clicked"] for row in rows] == [1, 0, 0, 0, 0, 0]
    reader = PredictionLogReader(folder, SCHEMA, now_s=now_s)
    (first, *_) = [row["at"] for batch in reader.batches(["at"]) for row in batch.to_pylist()]
    assert reader.time_of(first) == datetime.fromtimestamp(NOON_S, UTC)
    assert PredictionLogReader(folder, schema, now_s=now_s).time_of(first) is None


def test_a_period_keeps_its_fingerprint_when_later_files_come(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 60, "ab")])
    now_s = NOON_S + 10 * HOUR_S

    def fingerprint(until: str | None) -> str:
        return PredictionLogReader(folder, SCHEMA, now_s=now_s, until=until).fingerprint()

    until = "2026-11-23T12:10"
    period, whole = fingerprint(until), fingerprint(None)
    assert period != whole
    write(folder, "requests", "2026-11-23T12", [answered("s", 700, "ab")], name="part-1")
    assert fingerprint(until) == period
    assert fingerprint(None) != whole


def test_a_period_without_a_request_is_named(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 60, "ab")])
    with pytest.raises(DataError, match="has no request since 2026-11-23T13:00 before 2026-11-24 that"):
        open_data(folder, SCHEMA, since="2026-11-23T13:00", until="2026-11-24")
    with pytest.raises(DataError, match="no time lies between"):
        open_data(folder, SCHEMA, since="2026-11-24", until="2026-11-23")
    with pytest.raises(DataError, match="'7' is not a time like"):
        open_data(folder, SCHEMA, since="7")


def test_a_log_of_another_schema_is_refused(folder: Path) -> None:
    assert is_prediction_log(folder)
    (folder / RULES).write_text(LogRules(for_schema="hotels", features={}).model_dump_json())
    with pytest.raises(DataError, match="is a log of schema 'hotels', not of 'clicks'"):
        PredictionLogReader(folder, SCHEMA)


def test_files_that_are_no_part_of_a_log_are_named(folder: Path) -> None:
    write(folder, "requests", "2026-11-23T12", [answered("r", 60, "ab")])
    pq.write_table(pa.table({"request_id": ["r"], "label": [1.0]}), folder / "requests" / "labels.parquet")
    with pytest.raises(DataError, match=r"labels\.parquet' is not in the folder of an hour"):
        read(folder)
    (folder / "feedback").mkdir()
    (folder / "requests" / "labels.parquet").rename(folder / "feedback" / "labels.parquet")
    with pytest.raises(DataError, match=r"labels\.parquet.*row"):
        read(folder)
    words = pa.table({"request_id": ["r"], "row": [0], "label": ["clicked"]})
    pq.write_table(words, folder / "feedback" / "labels.parquet")
    with pytest.raises(DataError, match=r"cannot read '.*labels\.parquet'"):
        read(folder)
