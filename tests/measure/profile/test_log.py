from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.measure.profile.log import SampleLog
from polyrec.planner.profile import ProfileError

ASKED = {"largest": 64, "seconds": 8.0}


def filled(file: Path) -> None:
    with SampleLog(file, ASKED) as log:
        log.add("table@cpu", "v1", "warm 1 0", {"seconds": [1.0]})
        log.add("table@cpu", "v1", "warm 1 1", {"seconds": [2.0]})


def test_a_second_run_knows_what_the_first_has_found(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    filled(file)
    with SampleLog(file, ASKED) as log:
        assert log.resumed
        assert log.get("table@cpu", "v1", "warm 1 1") == {"seconds": [2.0]}
        assert log.get("table@cpu", "v1", "warm 1 2") is None
    with SampleLog(file, ASKED) as log:
        assert log.get("table@cpu", "v1", "warm 1 0") == {"seconds": [1.0]}


def test_of_a_changed_bundle_nothing_is_known(tmp_path: Path) -> None:
    filled(tmp_path / "samples")
    with SampleLog(tmp_path / "samples", ASKED) as log:
        assert log.get("table@cpu", "v2", "warm 1 0") is None


def test_a_run_that_is_asked_otherwise_starts_anew(tmp_path: Path) -> None:
    filled(tmp_path / "samples")
    with SampleLog(tmp_path / "samples", ASKED | {"seconds": 9.0}) as log:
        assert not log.resumed
        assert log.get("table@cpu", "v1", "warm 1 0") is None


@pytest.mark.parametrize("torn", ['{"path": "table@cpu", "iden', "[1]\n", '{"path": "table@cpu"}\n', "\x00"])
def test_what_an_interrupt_tore_is_left_out(tmp_path: Path, torn: str) -> None:
    file = tmp_path / "samples"
    filled(file)
    with file.open("a") as stream:
        stream.write(torn)
    with SampleLog(file, ASKED) as log:
        assert log.resumed
        assert log.get("table@cpu", "v1", "warm 1 1") == {"seconds": [2.0]}
        log.add("table@cpu", "v1", "warm 1 2", {"seconds": [3.0]})
    with SampleLog(file, ASKED) as log:
        assert log.get("table@cpu", "v1", "warm 1 2") == {"seconds": [3.0]}


def test_it_is_gone_once_removed(tmp_path: Path) -> None:
    with SampleLog(tmp_path / "samples", ASKED) as log:
        log.remove()
    assert not (tmp_path / "samples").exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    with pytest.raises(ProfileError, match="cannot write"):
        SampleLog(tmp_path / "samples", ASKED).__enter__()
