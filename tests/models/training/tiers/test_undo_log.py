from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyrec.models.training.tiers.row_file import RowFile
from polyrec.models.training.tiers.undo_log import UndoLog

ROWS, WIDTH = 2000, 14


def test_each_row_is_logged_once_a_snapshot(tmp_path: Path) -> None:
    log = UndoLog(RowFile(tmp_path / "rows", ROWS, WIDTH, 1))
    log.create([np.zeros((ROWS, WIDTH), np.float32)])
    rows = np.arange(0, ROWS, 7)
    records = np.ones((rows.size, WIDTH + 1), np.float32)
    log.write(rows, records)
    assert (tmp_path / "rows.undo-0").stat().st_size == 0
    log.snapshot()
    for _ in range(3):
        log.write(rows, records)
    assert (tmp_path / "rows.undo-1").stat().st_size == rows.size * (8 + 4 * (WIDTH + 2))


@pytest.mark.parametrize("cut", [1, 40, 71])
@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_ends_within_an_entry_is_read_to_there(seed: int, cut: int, tmp_path: Path) -> None:
    """A process that is killed while it logs has not overwritten the row."""
    random = np.random.default_rng(seed)
    log = UndoLog(RowFile(tmp_path / "rows", ROWS, WIDTH, 1))
    log.create([random.normal(size=(ROWS, WIDTH)).astype(np.float32)])

    def write(log: UndoLog) -> None:
        rows = np.flatnonzero(random.random(ROWS) < 0.3)
        log.write(rows, random.normal(size=(rows.size, WIDTH + 1)).astype(np.float32))

    states = {}
    for _ in range(4):
        write(log)
        states[log.snapshot()] = log.read(np.arange(ROWS))
        write(log)
    with (tmp_path / "rows.undo-4").open("ab") as file:
        file.write(bytes(cut))
    log.drop_before(2)
    other = UndoLog(RowFile(tmp_path / "rows", ROWS, WIDTH, 1))
    for number in (4, 3, 2):
        other.open(number)
        np.testing.assert_array_equal(other.read(np.arange(ROWS)), states[number])
        # what is written after a snapshot was restored can be undone too
        write(other)
        assert other.snapshot() == number + 1
        after = other.read(np.arange(ROWS))
        write(other)
        for snapshot, state in ((number + 1, after), (number, states[number])):
            other.roll_back(snapshot)
            np.testing.assert_array_equal(other.read(np.arange(ROWS)), state)
    other.remove()
    assert not list(tmp_path.iterdir())
