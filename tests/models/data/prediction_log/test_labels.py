"""Requests of a prediction log get the labels that came in their window."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data.prediction_log.labels import CLOCKS_S, MAX_JOINED, POSITIVE, label_files_of
from polyrec.models.data.prediction_log.log_format import (
    FEEDBACK,
    HOUR,
    RULES,
    LogRules,
    stored_names,
)
from polyrec.models.data.prediction_log.reader import PredictionLogReader
from polyrec.models.errors import DataError
from tests.models.data.prediction_log.written import (
    HOUR_S,
    NOON_S,
    SCHEMA,
    answered,
    clicked,
    label,
    read,
    write,
)


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


@pytest.mark.parametrize("max_joined", [MAX_JOINED, 3])
def test_labels_equal_a_slow_join_on_random_logs(
    max_joined: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrec.models.data.prediction_log.labels.MAX_JOINED", max_joined)
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
