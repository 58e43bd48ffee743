"""A prediction log is read as data, with the features and the labels of its requests."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data.packed.reader import PackedReader
from polyrec.models.data.prediction_log.log_format import (
    RULES,
    LogRules,
    is_prediction_log,
    load_rules,
    stored_names,
)
from polyrec.models.data.prediction_log.reader import PredictionLogReader
from polyrec.models.data.reader import open_data
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Label, Schema, Split
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
