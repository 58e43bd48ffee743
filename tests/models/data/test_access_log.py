from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data.access_log import AccessLog
from polyrec.models.errors import DataError
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.lookup_counts import LookupCounts
from polyrec.models.schema.schema import Categorical, Label, Schema, Split
from polyrec.models.schema.vocabulary import Vocabulary

SCHEMA = Schema(
    name="ads",
    categorical=(
        Categorical(name="user", role="context"),
        Categorical(name="liked", role="context", table="item", type="integer", cardinality=4, pooling="sum"),
        Categorical(name="item", type="integer", cardinality=4),
    ),
    label=Label(column="label"),
    split=Split(rule="hash", columns=("item",)),
)
ENCODER = Encoder(
    SCHEMA,
    {
        "user": Vocabulary(
            "user", "string", 2, np.array([3, 1, 2, 0]), np.zeros(4, int), pa.array(["a", "b"])
        ),
        "item": Vocabulary("item", "integer", 4, np.array([2, 0, 1, 3, 4, 5]), np.zeros(6, int)),
    },
    {},
)


def counted(path: Path, **how: Any) -> tuple[dict[str, list[int]], int]:
    counts = LookupCounts(ENCODER)
    done: list[int] = []
    log = AccessLog(path, SCHEMA, **how)
    rows = log.count(counts, done.append)
    assert sum(done) == rows
    assert sum(counts.rows().values()) >= 1
    return {t: n.tolist() for t, n in counts.by_id().items()}, rows


def lines(folder: Path, *bodies: Any) -> Path:
    file = folder / "requests.jsonl"
    file.write_text("".join((b if isinstance(b, str) else json.dumps(b)) + "\n" for b in bodies))
    return file


ROW = {"user": "b", "liked": [1, 1, 3], "item": 0, "session": "x"}
EXPECTED = {"user": [0, 1, 0, 0], "item": [1, 2, 0, 1, 0, 0]}
BODIES = {
    "row": ROW,
    "instances": {"instances": [ROW]},
    "columns": {"columns": {k: [v] for k, v in ROW.items()}},
    "rank": {"context": {"user": "b", "liked": [1, 1, 3]}, "candidates": {"item": [0]}, "top_k": 1},
    "oip": {
        "inputs": [
            {"name": "dense", "shape": [1, 0], "datatype": "FP32", "data": []},
            {"name": "sparse", "shape": [1, 2], "datatype": "INT64", "data": [[1, 0]]},
            {"name": "liked.values", "shape": [3], "datatype": "INT64", "data": [1, 1, 3]},
            {"name": "liked.lengths", "shape": [1], "datatype": "INT64", "data": [3]},
        ]
    },
    "oip ranking": {
        "inputs": [
            {"name": "context.sparse", "shape": [1, 1], "datatype": "INT64", "data": [1]},
            {"name": "candidate.sparse", "shape": [1, 1], "datatype": "INT64", "data": [0]},
            {"name": "liked.values", "shape": [3], "datatype": "INT64", "data": [1, 1, 3]},
        ]
    },
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_of_every_endpoint_is_a_line_of_the_log(body: Any, tmp_path: Path) -> None:
    assert counted(lines(tmp_path, body)) == (EXPECTED, 1)


def test_lines_add_up_and_blank_ones_count_nothing(tmp_path: Path) -> None:
    found, rows = counted(lines(tmp_path, *BODIES.values(), ""))
    assert rows == len(BODIES) + 1
    assert found == {t: [len(BODIES) * n for n in counts] for t, counts in EXPECTED.items()}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_rows_of_both_roles_are_counted(body: Any, tmp_path: Path) -> None:
    counts = LookupCounts(ENCODER)
    AccessLog(lines(tmp_path, body, body), SCHEMA).count(counts)
    assert counts.rows() == {"context": 2, "candidate": 2}


def test_a_context_counts_once_for_all_its_candidates(tmp_path: Path) -> None:
    body = {"context": {"user": "a"}, "candidates": {"item": [0, 3, 3]}}
    assert counted(lines(tmp_path, body))[0] == {"user": [1, 0, 0, 0], "item": [1, 0, 0, 2, 0, 0]}


def test_missing_and_unknown_values_are_look_ups_of_their_rows(tmp_path: Path) -> None:
    found, _ = counted(
        lines(tmp_path, {"instances": [{"user": None, "item": 9}, {"user": "never", "item": 1}]})
    )
    assert found == {"user": [0, 0, 1, 1], "item": [0, 1, 0, 0, 0, 1]}


@pytest.mark.parametrize("ids", [False, True])
def test_columns_of_a_parquet_log_hold_values_or_ids(ids: bool, tmp_path: Path) -> None:
    table = pa.table(
        {
            "user": [1, 1, 0] if ids else ["b", "b", "a"],
            "liked": [[1, 1, 3], None, []],
            "item": pa.array([0, 0, 2], pa.int32()),
            "at": ["now", "now", "then"],
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    found, rows = counted(tmp_path / "log.parquet", ids=ids)
    assert (found, rows) == ({"user": [1, 2, 0, 0], "item": [2, 2, 1, 1, 0, 0]}, 3)


def test_a_log_of_lines_may_hold_ids(tmp_path: Path) -> None:
    assert counted(lines(tmp_path, {"user": 1, "item": 0}), ids=True)[0]["user"] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("line", "offense"),
    [
        ("{", "line 2: Expecting"),
        ([1], "line 2: it is not an object"),
        ({"instances": {"user": "a"}}, "instances is not a list"),
        ({"instances": [1]}, "an instance is not an object"),
        ({"columns": {"user": "a"}}, "user is not a list"),
        ({"user": 3}, "feature 'user': 3 is not of type string"),
        ({"item": "3"}, "feature 'item': '3' is not of type integer"),
        ({"item": True}, "feature 'item': True is not of type integer"),
        ({"item": 2**70}, "has more than 64 bits"),
        ({"liked": [[1]]}, "feature 'liked': [1] is not of type integer"),
        ({"inputs": 1}, "inputs is not a list"),
        ({"inputs": [{"name": "sparse", "data": 3}]}, "data of sparse is not a list"),
        (
            {"inputs": [{"name": "liked.values", "data": [1]}, {"name": "liked.lengths", "data": [2]}]},
            "lengths do not add up to 1 values",
        ),
    ],
    ids=str,
)
def test_a_malformed_line_is_an_error_or_left_out(line: Any, offense: str, tmp_path: Path) -> None:
    file = lines(tmp_path, ROW, line, ROW)
    with pytest.raises(DataError) as error:
        AccessLog(file, SCHEMA).count(LookupCounts(ENCODER))
    assert f"{file}, line 2: " in str(error.value)
    assert offense in str(error.value)
    log, counts = AccessLog(file, SCHEMA, on_malformed="count"), LookupCounts(ENCODER)
    log.count(counts)
    assert log.malformed == 1
    assert counts.by_id()["user"].tolist() == [0, 2, 0, 0]


def test_a_log_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no access log"):
        AccessLog(tmp_path / "nothing.jsonl", SCHEMA)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="no column is a categorical feature; it has x"):
        AccessLog(tmp_path / "x.parquet", SCHEMA)
    pq.write_table(pa.table({"user": [1.5]}), tmp_path / "y.parquet")
    with pytest.raises(DataError, match="column 'user' is double, the schema needs a string"):
        AccessLog(tmp_path / "y.parquet", SCHEMA)
