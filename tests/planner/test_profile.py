from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyrec.planner.devices import Device, Machine
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import PlannedPath
from polyrec.planner.profile import Memory, PathProfile, Profile, ProfileError, load_profile, save_profile

PROFILE = Profile(
    machine=Machine(name="here", devices=(Device(name="cpu", kind="cpu", lanes=2, memory_bytes=10**9),)),
    paths=(
        PathProfile(
            path=PlannedPath(name="table@cpu", bundle=Path("runs/table"), runtime="onnx"),
            representation="table",
            accuracy=0.9,
            memory=Memory(tables={"item": 100, "user": 10}, fixed=20, peak=3),
            latency=LatencyModel(rows=(1, 64), median_s=(1e-3, 2e-3), tail_s=(2e-3, 4e-3)),
        ),
    ),
)


def changed(folder: Path, **changes: Any) -> Path:
    file = folder / "profile.json"
    file.write_text(json.dumps(json.loads(PROFILE.model_dump_json()) | changes))
    return file


def test_a_saved_file_is_loaded_with_bundles_relative_to_the_file(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path / "profile.json")
    loaded = load_profile(tmp_path / "profile.json")
    assert loaded.paths[0].path.bundle == tmp_path / "runs/table"
    assert loaded.machine == PROFILE.machine
    assert loaded.paths[0].latency == PROFILE.paths[0].latency
    assert loaded.paths[0].memory.total == 133


def test_a_missing_profile_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no profile .* make one: polyrec profile BUNDLE --out"):
        load_profile(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": []}, "paths"),
        ({"version": 2}, "version"),
        ({"speed": 3}, "speed"),
        ({"machine": {"name": "none", "devices": []}}, "machine.devices"),
    ],
)
def test_a_wrong_profile_raises_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError) as error:
        load_profile(changed(tmp_path, **changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_text_that_is_no_profile_raises(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text("{")
    with pytest.raises(ProfileError, match="is not JSON"):
        load_profile(file)
    file.write_bytes(b"\xff")
    with pytest.raises(ProfileError, match="cannot read profile"):
        load_profile(file)
