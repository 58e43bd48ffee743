from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save

from polyrec.feed.entries import Entry, joined, merged, parse_entry
from polyrec.feed.source import Message
from polyrec.models.tiers.updates.update import TableUpdate, UpdateError

WIDTH = 8


def entry(id: int, names: list[str], number: float, **options: str) -> Entry:
    rows = np.full((len(names), WIDTH), number, np.float32)
    return Entry(Message(f"{id}-0", {}), options, {"item": TableUpdate(np.empty(0, np.int64), rows, names)})


def test_merged_entries_keep_their_order_and_their_options() -> None:
    entries = [entry(i, [f"v{i % 3}"], i) for i in range(7)]
    entries += [entry(7, ["w"], 7, add="true"), entry(8, ["x"], 8, add="true"), entry(9, ["y"], 9)]
    gone = Entry(Message("10-0", {}), {}, {"item": TableUpdate.retraction(("y",))})
    runs = list(merged([*entries, gone, entry(11, ["y"], 11)], 5))
    assert [[e.message.id for e in run] for run in runs] == [
        ["0-0", "1-0", "2-0", "3-0", "4-0"],
        ["5-0", "6-0"],
        ["7-0", "8-0"],
        ["9-0"],
        ["10-0"],
        ["11-0"],
    ]
    one = joined(runs[0])["item"]
    assert one.names == ["v0", "v1", "v2", "v0", "v1"]
    assert one.values[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_joined_entries_that_address_rows_by_id_still_do() -> None:
    run = [
        Entry(Message(f"{i}-0", {}), {}, {"item": TableUpdate(np.array([i, 7]), np.full((2, WIDTH), i))})
        for i in range(3)
    ]
    one = joined(run)["item"]
    assert one.names is None
    assert one.ids.tolist() == [0, 7, 1, 7, 2, 7]
    assert one.values[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("fields", "offense"),
    [
        ({b"text": b"x"}, "one field `json` or `safetensors`"),
        ({b"json": b"{}", b"add": b"true"}, "add: beside `json`, options are keys of its document"),
        ({b"json": b"{}", b"safetensors": b"x"}, "one field `json` or `safetensors`"),
        ({b"json": b'{"file": "/etc/passwd"}'}, "an entry has `tables`"),
        ({b"json": b'{"tables": {}, "key": "k"}'}, "neither `file`, `key` nor `time`"),
        ({b"json": b'{"tables": {}, "time": 1}'}, "neither `file`, `key` nor `time`"),
        ({b"safetensors": b"x"}, "is not safetensors"),
        ({b"json": b'{"tables": {"item": {"ids": [true], "rows": [[1.0]]}}}'}, "valid integer"),
        ({b"json": b'{"tables": {"item": {"ids": [1.0], "rows": [[1.0]]}}}'}, "valid integer"),
        ({b"json": b'{"tables": {"item": {"values": [true], "rows": [[1.0]]}}}'}, "valid string"),
        ({b"json": b'{"tables": {"item": {"ids": [1], "rows": [[true]]}}}'}, "valid number"),
        ({b"json": b'{"tables": {"item": {"ids": [1], "rows": [["1"]]}}}'}, "valid number"),
        ({b"json": b'{"tables": {"item": {"retract": [true]}}}'}, "valid string"),
        ({b"json": b'{"tables": {}, "path": "' + b"x" * 300 + b'"}'}, "path of 300 characters"),
        ({b"json": b'{"tables": {"item": {"rows": [' + b"[]," * 2**21 + b"[]]}}}"}, "bytes; at most"),
        (
            {b"safetensors": save({"t.rows": np.ones((1, 2), np.float32), "t.ids": np.arange(2)})},
            "names 2 rows",
        ),
    ],
)
def test_an_entry_that_is_no_update_is_reported(fields: dict[bytes, bytes], offense: str) -> None:
    with pytest.raises(UpdateError, match=offense):
        parse_entry(Message("1-0", fields))


def test_entries_of_two_parts_are_not_merged() -> None:
    entries = [
        Entry(Message(f"{part}-{i}", {}, part=part), one.options, one.update)
        for part in range(2)
        for i, one in enumerate([entry(0, ["v"], 1.0), entry(1, ["w"], 2.0)])
    ]
    assert [[e.message.id for e in run] for run in merged(entries, 9)] == [["0-0", "0-1"], ["1-0", "1-1"]]


def test_a_retraction_ends_a_run_as_a_call_retracts_after_it_applies_rows() -> None:
    both = entry(1, ["b"], 1)
    gone = TableUpdate(*(getattr(both.update["item"], name) for name in ("ids", "values", "names")), ("a",))
    entries = [entry(0, ["a"], 0), Entry(both.message, {}, {"item": gone}), entry(2, ["a"], 2)]
    runs = list(merged(entries, 9))
    assert [[e.message.id for e in run] for run in runs] == [["0-0", "1-0"], ["2-0"]]
    one, alone = (joined(run)["item"] for run in runs)
    assert (one.names, one.retracted) == (["a", "b"], ("a",))
    assert (alone.names, alone.values[:, 0].tolist(), alone.retracted) == (["a"], [2], ())


def test_options_of_a_document_are_those_of_the_call() -> None:
    document = b'{"tables": {"item": {"retract": ["a"]}}, "path": "Table@cpu", "add": true, "expires_s": 60}'
    options = parse_entry(Message("1-0", {b"json": document})).options
    assert options == {"path": "Table@cpu", "add": "true", "expires_s": "60.0"}
    assert parse_entry(Message("1-0", {b"json": b'{"tables": {"item": {"retract": ["a"]}}}'})).options == {}


def test_entries_that_address_rows_in_another_way_are_not_merged() -> None:
    first = entry(0, ["a"], 0)
    rows = np.ones((1, WIDTH), np.float32)
    others = {
        "by id": {"item": TableUpdate(np.array([3]), rows)},
        "of another width": {"item": TableUpdate(np.empty(0, np.int64), rows[:, 1:], ["b"])},
        "of another table": {**entry(1, ["b"], 1).update, "user": TableUpdate(np.array([3]), rows)},
    }
    for what, update in others.items():
        assert len(list(merged([first, Entry(Message("1-0", {}), {}, update)], 9))) == 2, what
    with_user = {**first.update, "user": TableUpdate(np.array([3]), rows)}
    (run,) = merged([Entry(first.message, {}, with_user), entry(1, ["b"], 1)], 9)
    update = joined(run)
    assert (update["item"].names, update["user"].ids.tolist()) == (["a", "b"], [3])
