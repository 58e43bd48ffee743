"""A loop's folder: records, commands, one loop at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.loop.folder import LoopFolder
from polyrec.loop.iteration import Iteration, LoopError


@pytest.fixture
def folder(tmp_path: Path) -> LoopFolder:
    found = LoopFolder(tmp_path / "state")
    found.create()
    return found


def iteration(number: int) -> Iteration:
    return Iteration(number=number, began=1.0, since=None, until="u", serving="v", step_began=1.0)


def test_records_are_read_in_the_order_of_their_numbers(folder: LoopFolder) -> None:
    assert folder.last() is None
    for number in (1, 2, 10_000):
        folder.save(iteration(number))
    assert [i.number for i in folder.iterations()] == [1, 2, 10_000]
    assert [i.number for i in folder.iterations(2)] == [2, 10_000]
    assert folder.last() == iteration(10_000)


def test_a_damaged_record_is_one_line(folder: LoopFolder) -> None:
    folder.save(iteration(1))
    (folder.folder_of(1) / "record.json").write_text("{}")
    with pytest.raises(LoopError, match=r"record '.*record.json': number: Field required"):
        folder.last()


def test_other_files_beside_the_iterations_are_ignored(folder: LoopFolder) -> None:
    folder.save(iteration(1))
    copy = folder.folder_of(1).with_name("0001 (copy)")
    copy.mkdir()
    (copy / "record.json").write_text("{}")
    assert [i.number for i in folder.iterations()] == [1]
    (folder.path / "control" / "hold-train").write_bytes(b"caf\xe9")
    assert folder.holds() == {"train": "caf\ufffd"}


def test_steps_are_held_until_they_are_released(folder: LoopFolder) -> None:
    folder.hold("canary", "sale today")
    folder.hold("train", "busy")
    assert folder.holds() == {"train": "busy", "canary": "sale today"}
    folder.release("train")
    assert folder.controls() == {"hold-canary"}
    with pytest.raises(LoopError, match="step 'train' is not held"):
        folder.release("train")


def test_a_command_is_for_one_iteration(folder: LoopFolder) -> None:
    folder.give("force", 7)
    assert folder.has("force", 7)
    assert not folder.has("force", 8)
    assert not folder.has("drop", 7)
    folder.remove("force", 7)
    assert folder.controls() == set()


def test_one_loop_at_a_time(folder: LoopFolder) -> None:
    assert not folder.is_running
    with folder.locked():
        assert folder.is_running
        with pytest.raises(LoopError, match="another loop runs in"), folder.locked():
            pass
    assert not folder.is_running


def test_a_folder_without_a_loop_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LoopError, match="is not a loop's folder"):
        LoopFolder(tmp_path).require()
