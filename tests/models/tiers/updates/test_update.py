from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.updates.update import TableUpdate, UpdateError, apply_update
from polyrec.models.tiers.updates.update_file import encode_update, load_update
from tests.models.tiers.waiting import wait_until
from tests.models.tiers.worlds import WIDTH, encoder_of, flat_weight, row_of, world

SIZES = {"a": 3000, "b": 40}


def test_new_values_reach_every_tier_by_id(tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = world(encoder, tmp_path)
    rows = TieredRows(stack)
    random = np.random.default_rng(0)
    ids = {t: random.permutation(n)[: n // 3] for t, n in SIZES.items()}
    update = {t: TableUpdate(ids[t], row_of(i, ids[t], 7)) for i, t in enumerate(SIZES)}
    (tmp_path / "update.safetensors").write_bytes(encode_update(update))
    assert apply_update(stack, load_update(tmp_path / "update.safetensors")).rows == 1000 + 13
    nothing = {"a": TableUpdate(np.empty(0, np.int64), np.empty((0, WIDTH), np.float32))}
    assert apply_update(stack, nothing).rows == 0
    one = {"b": TableUpdate(ids["b"][:1], row_of(1, ids["b"][:1], 7))}
    assert apply_update(stack, nothing | one).rows == 1
    for _ in range(2):  # laid over the tiers, then written into them
        base = 0
        for i, (table, v) in enumerate(encoder.vocabularies.items()):
            version = np.zeros(v.rows)
            version[ids[table]] = 7
            got = rows.gather(torch.from_numpy(base + v.rank_of_id))
            np.testing.assert_array_equal(got.numpy(), row_of(i, np.arange(v.rows), version))
            base += v.rows
        assert stack.settle(10.0)
    assert not stack.views.newest.layers
    assert stack.figures().replaced <= 1014
    stack.close()


def test_new_values_are_written_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stack = world(encoder_of(SIZES), tmp_path)
    ids, writing, find = np.arange(30), "polyrec-tiers", np.flatnonzero
    errors = [MemoryError("no memory to find rows")]

    def finding(array: np.ndarray) -> np.ndarray:
        if errors and threading.current_thread().name == writing:
            raise errors.pop()
        return find(array)

    monkeypatch.setattr(np, "flatnonzero", finding)
    apply_update(stack, {"a": TableUpdate(ids, row_of(0, ids, 7))})
    wait_until(lambda: not stack.views.newest.layers, "the values are not written")
    assert not errors
    assert "new values are not written yet" in caplog.text
    stack.close()


@pytest.mark.parametrize(
    ("update", "offense"),
    [
        ({"c": TableUpdate(np.array([0]), np.zeros((1, WIDTH), np.float32))}, "no table 'c'; known: a, b"),
        ({"b": TableUpdate(np.array([40]), np.zeros((1, WIDTH), np.float32))}, "has ids 0 to 39, not 40"),
        ({"b": TableUpdate(np.array([-1]), np.zeros((1, WIDTH), np.float32))}, "has ids 0 to 39, not -1"),
        ({"b": TableUpdate(np.array([1]), np.zeros((1, 3), np.float32))}, r"wants \(1, 8\) numbers"),
        ({"b": TableUpdate(np.array([1]), np.full((1, WIDTH), np.nan, np.float32))}, "within 65,504 of 0"),
        ({"b": TableUpdate(np.array([1]), np.full((1, WIDTH), -3.4e38, np.float32))}, "within 65,504"),
    ],
)
def test_an_invalid_update_changes_nothing_and_is_reported_in_one_line(
    update: dict[str, TableUpdate], offense: str, tmp_path: Path
) -> None:
    encoder = encoder_of(SIZES)
    stack = world(encoder, tmp_path)
    sound = {"a": TableUpdate(np.array([1]), row_of(0, np.array([1]), 9))}
    with pytest.raises(UpdateError, match=offense):
        apply_update(stack, sound | update)
    everything = torch.arange(sum(SIZES.values()))
    assert torch.equal(TieredRows(stack).gather(everything), flat_weight(encoder))
    stack.close()


def test_one_thread_writes_all_updates_and_ends_with_the_stack(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    stack = world(encoder_of(SIZES), tmp_path)
    for version in range(1, 4):
        apply_update(stack, {"a": TableUpdate(np.arange(9), row_of(0, np.arange(9), version))})
    (thread,) = {t for t in threading.enumerate() if t.name == "polyrec-tiers"} - before
    stack.close()
    assert not thread.is_alive()
