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


def test_a_second_run_reuses_measurements(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    filled(file)
    with SampleLog(file, ASKED) as log:
        assert log.resumed
        assert log.get("table@cpu", "v1", "warm 1 1") == {"seconds": [2.0]}
        assert log.get("table@cpu", "v1", "warm 1 2") is None
    with SampleLog(file, ASKED) as log:
        assert log.get("table@cpu", "v1", "warm 1 0") == {"seconds": [1.0]}


def test_measurements_of_a_changed_bundle_are_ignored(tmp_path: Path) -> None:
    filled(tmp_path / "samples")
    with SampleLog(tmp_path / "samples", ASKED) as log:
        assert log.get("table@cpu", "v2", "warm 1 0") is None


def test_a_run_with_other_settings_starts_a_new_log(tmp_path: Path) -> None:
    filled(tmp_path / "samples")
    with SampleLog(tmp_path / "samples", ASKED | {"seconds": 9.0}) as log:
        assert not log.resumed
        assert log.get("table@cpu", "v1", "warm 1 0") is None


@pytest.mark.parametrize("torn", ['{"path": "table@cpu", "iden', "[1]\n", '{"path": "table@cpu"}\n', "\x00"])
def test_a_truncated_line_is_ignored(tmp_path: Path, torn: str) -> None:
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


def test_an_unwritable_place_is_reported(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    with pytest.raises(ProfileError, match="cannot write"):
        SampleLog(tmp_path / "samples", ASKED).__enter__()
