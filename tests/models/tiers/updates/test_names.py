"""Values added and retracted while serving, compared with a dictionary of what is served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Label, Schema, Split
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.changes import MAX_EXPIRY_WAIT_S, Changes
from polyrec.models.tiers.updates.drift import Drift
from polyrec.models.tiers.updates.update import (
    AddOptions,
    StoredUpdate,
    TableUpdate,
    UpdateError,
    UpdateNotKept,
    apply_update,
)
from polyrec.models.tiers.updates.update_log import UpdateLog
from polyrec.models.tiers.view import View
from tests.models.tiers.newest_view import newest_view
from tests.models.tiers.waiting import wait_until
from tests.models.tiers.worlds import WIDTH, world

KNOWN = [f"v{i}" for i in range(40)]
RESERVED = 5
NEW = [f"n{i}" for i in range(8)]


def encoder() -> Encoder:
    """A table of strings with reserved rows, in a shuffled order."""
    schema = Schema(
        name="names",
        categorical=(Categorical(name="t"),),
        label=Label(column="label"),
        split=Split(rule="hash", columns=("t",)),
    )
    rows = len(KNOWN) + RESERVED + 2
    values = pa.array([*KNOWN, *[None] * RESERVED], pa.string())
    ranks = np.random.default_rng(3).permutation(rows)
    table = Vocabulary("t", "string", len(values), ranks, np.zeros(rows, np.int64), values)
    return Encoder(schema, {"t": table}, {})


ENCODER = encoder()
UNKNOWN = ENCODER.vocabularies["t"].oov_id


def named(values: list[Any], version: float) -> dict[str, TableUpdate]:
    return {
        "t": TableUpdate(np.empty(0, np.int64), np.full((len(values), WIDTH), version, np.float32), values)
    }


def retraction(values: list[Any]) -> dict[str, TableUpdate]:
    return {"t": TableUpdate.retraction(values)}


def served(stack: TierStack, values: list[str]) -> list[list[float]]:
    """Encodes and gathers values as a batch is."""
    rows = TieredRows(stack)
    with newest_view(rows) as view:
        assert view.encoder is not None
        ranks = view.encoder.vocabularies["t"].encode("t", values)
        return rows.gather(torch.from_numpy(ranks)).tolist()


def versions(stack: TierStack, values: list[str]) -> list[float]:
    """The version of each value's row; -1 for that of unknown ones, 0 as opened."""
    found = []
    for row in served(stack, values):
        opened = row[1] != row[2]  # worlds.row_of: table, id, version ...
        found.append(-1.0 if opened and row[1] == UNKNOWN else 0.0 if opened else row[2])
    return found


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[Changes]:
    changes = Changes(tmp_path, UpdateLog(tmp_path / "log"))
    yield changes
    changes.close(remove=False)


OPERATION = st.one_of(
    st.tuples(st.just("add"), st.lists(st.sampled_from(NEW + KNOWN[:4]), min_size=1, max_size=4)),
    st.tuples(st.just("retract"), st.lists(st.sampled_from(NEW + KNOWN[:4]), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["settle", "open again", "restart", "reorder"]), st.just([])),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATION, max_size=12))
def test_served_values_are_those_of_a_dictionary(
    operations: list[tuple[str, list[str]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("names")
    changes = Changes(folder, UpdateLog(folder / "log"))
    stack = world(ENCODER, folder, (0.0, 0.3, 0.7), changes=changes)
    expected: dict[str, float] = {v: 0.0 for v in KNOWN}
    taken: set[str] = set()
    for version, (what, values) in enumerate(operations, 1):
        if what == "add":
            new = {v for v in values if v in NEW} - taken
            if len(taken | new) > RESERVED:
                with pytest.raises(UpdateError, match="reserved rows are free"):
                    apply_update(stack, named(values, version), adding=AddOptions())
            else:
                applied = apply_update(stack, named(values, version), adding=AddOptions())
                assert (applied.rows, applied.added) == (len(values), len(new))
                taken |= new
                expected |= dict.fromkeys(values, float(version))
        elif what == "retract":
            apply_update(stack, retraction(values))
            taken -= set(values)
            expected |= {v: -1.0 for v in values if v in KNOWN}
            expected = {v: e for v, e in expected.items() if v in KNOWN or v in taken}
        elif what == "settle":
            assert stack.settle(20.0)
        elif what == "reorder":
            served(stack, KNOWN[5:9] * 50)
            Drift(stack, every=1).reorder()
        else:
            stack.close()
            if what == "restart":
                changes.close(remove=False)
                changes = Changes(folder, UpdateLog(folder / "log"))
            stack = world(ENCODER, folder, (0.0, 0.3, 0.7), changes=changes)
        every = KNOWN + NEW
        assert versions(stack, every) == [expected.get(v, -1.0) for v in every]
    stack.close()
    changes.close()


def test_a_new_value_is_refused_unless_it_may_be_added(changes: Changes, tmp_path: Path) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    with pytest.raises(UpdateError, match="has no value 'n0'; \"add\": true gives"):
        apply_update(stack, named(["v1", "n0"], 1))
    assert versions(stack, ["v1", "n0"]) == [0.0, -1.0]
    stack.close()


def test_more_new_values_than_reserved_rows_are_free_change_nothing(changes: Changes, tmp_path: Path) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    apply_update(stack, named(NEW[:4], 1), adding=AddOptions())
    with pytest.raises(UpdateError, match="2 new values of table 't', and 1 of its 5 reserved rows are free"):
        apply_update(stack, named(["n0", *NEW[4:6], "v0"], 2), adding=AddOptions())
    assert versions(stack, [*NEW[:6], "v0"]) == [1, 1, 1, 1, -1, -1, 0]
    apply_update(stack, retraction(["n3"]))
    assert apply_update(stack, named(NEW[4:6], 3), adding=AddOptions()).added == 2
    assert versions(stack, NEW[:6]) == [1, 1, 1, -1, 3, 3]
    stack.close()


@pytest.mark.parametrize(
    ("value", "offense"),
    [
        (7, "cannot have it"),
        (None, "wants"),
        ("x" * 1025, "1025 characters"),
        ("\ud800", "not Unicode text"),
    ],
)
def test_a_value_that_a_table_cannot_have_is_reported(
    value: Any, offense: str, changes: Changes, tmp_path: Path
) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    update = {"t": TableUpdate(np.empty(0, np.int64), np.zeros((1, 3), np.float32), [value])}
    with pytest.raises(UpdateError, match=offense):
        apply_update(stack, update, adding=AddOptions())
    stack.close()


def test_a_repeated_update_neither_adds_nor_retracts_again(changes: Changes, tmp_path: Path) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    assert apply_update(stack, named(["n0"], 1), "first", AddOptions()).added == 1
    apply_update(stack, retraction(["n0"]), "second")
    again = apply_update(stack, named(["n0"], 1), "first", AddOptions())
    assert (again.repeated, again.added) == (True, 0)
    assert versions(stack, ["n0"]) == [-1.0]
    stack.close()


def test_tiers_that_keep_no_updates_add_nothing(tmp_path: Path) -> None:
    stack = world(ENCODER, tmp_path)
    with pytest.raises(UpdateError, match="keep no updates"):
        apply_update(stack, named(["n0"], 1), adding=AddOptions())
    stack.close()


def test_values_expire_by_themselves_and_a_newer_update_keeps_them(changes: Changes, tmp_path: Path) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    soon = time.time() + 1.5
    apply_update(stack, named(["n0", "n1", "v1"], 1), adding=AddOptions(soon))
    assert versions(stack, ["n0", "n1", "v1"]) == [1.0, 1.0, 1.0]
    apply_update(stack, named(["n1"], 2), adding=AddOptions())
    wait_until(lambda: versions(stack, ["n0"]) == [-1.0], "nothing removes the value")
    # a value that was trained does not expire
    assert versions(stack, ["n1", "v1"]) == [2.0, 1.0]
    assert (changes.figures.added, changes.figures.expired) == (2, 1)
    stack.close()


def test_an_update_that_expires_may_name_trained_values_beside_added_ones(
    changes: Changes, tmp_path: Path
) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    later, much_later = time.time() + 1000, time.time() + 2000
    apply_update(stack, named(["n0"], 1), adding=AddOptions(later))
    apply_update(stack, named(["v1", "n0", "n1"], 2), adding=AddOptions(much_later))
    assert versions(stack, ["v1", "n0", "n1"]) == [2.0, 2.0, 2.0]
    assert changes.names.next_expiry() == much_later
    assert set(changes.names.expired(much_later)["t"]) == {"n0", "n1"}
    stack.close()


def test_an_expiry_that_cannot_be_kept_is_a_line_and_tried_again_later(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    apply_update(stack, named(["n0"], 1), adding=AddOptions(time.time() - 1))

    def full(update: StoredUpdate, key: str) -> None:
        raise UpdateNotKept("update: the disk is full")

    monkeypatch.setattr(changes, "_store", full)
    changes._expire_now()
    assert [(r.getMessage(), r.exc_info) for r in caplog.records] == [
        ("expired values are still served, trying again in 10 s: update: the disk is full", None)
    ]
    assert changes._timer is not None
    assert changes._timer.interval == 10
    stack.close()


def test_values_expire_soon_after_the_clock_was_set_forward(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    now_s = time.time()
    apply_update(stack, named(["n0"], 1), adding=AddOptions(now_s + 86400))
    monkeypatch.setattr(time, "time", lambda: now_s + 86400)
    assert changes._timer is not None
    assert changes._timer.interval <= MAX_EXPIRY_WAIT_S
    changes._timer.function()
    assert versions(stack, ["n0"]) == [-1.0]
    stack.close()


def test_values_that_expired_while_no_server_ran_are_removed_at_the_start(tmp_path: Path) -> None:
    changes = Changes(tmp_path, UpdateLog(tmp_path / "log"))
    stack = world(ENCODER, tmp_path, changes=changes)
    apply_update(stack, named(["n0"], 1), adding=AddOptions(time.time() - 1))
    stack.close()
    changes.close(remove=False)
    changes = Changes(tmp_path, UpdateLog(tmp_path / "log"))
    stack = world(ENCODER, tmp_path, changes=changes)
    wait_until(lambda: versions(stack, ["n0"]) == [-1.0], "nothing removes the value")
    stack.close()
    changes.close()


def test_a_batch_sees_a_value_and_its_row_or_neither(changes: Changes, tmp_path: Path) -> None:
    """An id changes hands while a batch is between encoding and gathering."""
    stack = world(ENCODER, tmp_path, changes=changes)
    apply_update(stack, named(NEW[:RESERVED], 1), adding=AddOptions())
    rows = TieredRows(stack)
    with newest_view(rows) as view:
        apply_update(stack, retraction(["n0"]))
        apply_update(stack, named(["n7"], 2), adding=AddOptions())
        assert view.encoder is not None
        ranks = view.encoder.vocabularies["t"].encode("t", ["n0", "n7"])
        got = rows.gather(torch.from_numpy(ranks))
        assert got[0].tolist() == [1.0] * WIDTH
        assert got[1, 1].item() == UNKNOWN
    assert versions(stack, ["n0", "n7"]) == [-1.0, 2.0]
    stack.close()


def test_a_log_that_is_written_again_keeps_the_names(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrec.models.tiers.updates.update_log.MIN_REWRITTEN_BYTES", 1024)
    stack = world(ENCODER, tmp_path, changes=changes)
    apply_update(stack, named(["n0", "n1"], 1), adding=AddOptions(time.time() + 1000))
    apply_update(stack, retraction(["n1"]))
    for version in range(2, 60):
        apply_update(stack, named(KNOWN, version))
    stack.close()
    changes.close(remove=False)
    assert (tmp_path / "log").stat().st_size < 20_000
    again = Changes(tmp_path, UpdateLog(tmp_path / "log"))
    stack = world(ENCODER, tmp_path, changes=again)
    assert versions(stack, ["n0", "n1", "v3"]) == [1.0, -1.0, 59.0]
    assert again.names.next_expiry() is not None
    stack.close()
    again.close()


def test_a_value_added_and_retracted_by_one_update_is_unknown(changes: Changes, tmp_path: Path) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    given = named(["n0", "n1"], 1)["t"]
    update = {"t": TableUpdate(given.ids, given.values, given.names, retracted=("n0", "n0"))}
    applied = apply_update(stack, update, adding=AddOptions())
    assert (applied.added, applied.retracted, changes.taken) == (2, 1, 1)
    assert stack.figures().batches == 0, "the row of unknown values was not read for a request"
    assert versions(stack, ["n0", "n1"]) == [-1.0, 1.0]
    stack.close()


def test_a_retracted_value_gets_the_row_of_unknown_ones_while_rows_move(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = world(ENCODER, tmp_path, (0.0, 0.1, 0.9), changes=changes)
    enter, drift = stack.views.enter, Drift(stack, every=1)

    def reordered() -> View:
        monkeypatch.setattr(stack.views, "enter", enter)
        before = stack.views.newest.encoder
        served(stack, ["never known"] * 500)
        drift.reorder()
        after = stack.views.newest.encoder
        assert before is not None
        assert after is not None
        assert before.vocabularies["t"].oov_rank != after.vocabularies["t"].oov_rank
        return enter()

    monkeypatch.setattr(stack.views, "enter", reordered)
    apply_update(stack, retraction(["v7"]))
    assert versions(stack, ["v7"]) == [-1.0]
    stack.close()


def test_an_update_reaches_the_tiers_that_a_reload_opened_meanwhile(changes: Changes, tmp_path: Path) -> None:
    old = world(ENCODER, tmp_path, changes=changes)
    new = world(ENCODER, tmp_path, changes=changes)
    old.close()
    apply_update(new, named(["n0"], 1), adding=AddOptions())
    apply_update(old, named(["n0"], 2))
    assert (versions(new, ["n0"]), changes.taken) == ([2.0], 1)
    assert apply_update(old, retraction(["n0", "v1"])).retracted == 2
    assert versions(new, ["n0", "v1"]) == [-1.0, -1.0]
    new.close()
    with pytest.raises(UpdateNotKept, match="no longer served"):
        apply_update(new, named(["v1"], 3))


def test_a_retraction_that_found_nothing_is_not_applied_later(changes: Changes, tmp_path: Path) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    apply_update(stack, retraction(["n0"]), "first")
    apply_update(stack, named(["n0"], 1), adding=AddOptions())
    assert apply_update(stack, retraction(["n0"]), "first").repeated
    assert versions(stack, ["n0"]) == [1.0]
    stack.close()


def test_names_count_as_a_part_of_the_log(
    changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is mostly names is not written again at every update."""
    monkeypatch.setattr("polyrec.models.tiers.updates.update_log.MIN_REWRITTEN_BYTES", 1024)
    stack = world(ENCODER, tmp_path, changes=changes)
    long = ["x" * 1000 + str(i) for i in range(RESERVED)]
    for value in long:
        apply_update(stack, named([value], 1), adding=AddOptions())
    file = (tmp_path / "log").stat().st_ino
    for version in range(5):
        apply_update(stack, named(["v1"], version))
    assert (tmp_path / "log").stat().st_ino == file
    apply_update(stack, retraction(long))
    assert changes.names.bytes == 0
    stack.close()
