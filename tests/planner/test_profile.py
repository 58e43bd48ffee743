from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from polyrec.planner.devices import Device, Machine
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import PlannedPath
from polyrec.planner.profile import (
    Memory,
    PathProfile,
    Profile,
    ProfileError,
    load_profile,
    save_profile,
    with_given_quality,
)
from polyrec.planner.quality import QualityDifference
from polyrec.planner.tier_times import CutPoint, CutTimes, TierCost

PROFILE = Profile(
    machine=Machine(name="here", devices=(Device(name="cpu", kind="cpu", lanes=2, memory_bytes=10**9),)),
    paths=(
        PathProfile(
            path=PlannedPath(name="table@cpu", bundle=Path("runs/table"), runtime="onnx"),
            representation="table",
            quality=0.9,
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


def test_times_of_cuts_are_kept_and_a_profile_without_them_is_read(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path / "without.json")
    assert "cut_times" in json.loads((tmp_path / "without.json").read_text())
    older = changed(tmp_path)
    raw = json.loads(older.read_text())
    del raw["cut_times"]
    older.write_text(json.dumps(raw))
    assert load_profile(older).cut_times == ()
    point = CutPoint(
        memory_bytes=50, rows=8, samples=3, seconds=2e-3, memory_s=1e-3, lookups=8, below=2, reads=1
    )
    times = CutTimes(
        path="table@cpu",
        row_bytes=64,
        page_bytes=512,
        reader="io_uring",
        points=(point,),
        cost=TierCost(wait_s=1e-4),
        error=0.1,
    )
    save_profile(PROFILE.model_copy(update={"cut_times": (times,)}), tmp_path / "with.json")
    assert load_profile(tmp_path / "with.json").cut_times == (times,)


def test_a_missing_profile_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no profile .* make one: polyrec profile BUNDLE --out"):
        load_profile(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": []}, "paths"),
        ({"version": 3}, "version 3 is of a newer Polyrec, this one reads 1 to 2; profile again"),
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
    with pytest.raises(ProfileError, match="is not JSON: it is not text"):
        load_profile(file)


def test_a_profile_of_version_1_is_read_with_information_from_its_entropy(tmp_path: Path) -> None:
    old = json.loads(PROFILE.model_dump_json())
    path = old["paths"][0]
    del path["interval"], path["metrics"], path["quality_from"]
    path |= {"accuracy": 0.9, "accuracy_from": "data", "quality": {"normalised_entropy": 0.75, "auc": 0.8}}
    file = changed(tmp_path, version=1, paths=[path])
    (found,) = load_profile(file).paths
    assert (found.quality, found.accuracy, found.quality_from) == (0.25, 0.9, "data")
    path["quality"] = {}
    loaded = load_profile(changed(tmp_path, version=1, paths=[path]))
    assert (loaded.metric, loaded.paths[0].quality) == ("accuracy", 0.9)


def test_given_qualities_replace_measured_ones_and_are_exact() -> None:
    names = ("a@cpu", "b@cpu", "c@cpu")
    paths = tuple(
        PROFILE.paths[0].model_copy(
            update={"path": PROFILE.paths[0].path.model_copy(update={"name": name}), "quality": 0.2}
        )
        for name in names
    )
    unclear = [
        QualityDifference(path=a, other=b, value=0, low=-0.1, high=0.1) for a, b in combinations(names, 2)
    ]
    profile = PROFILE.model_copy(update={"paths": paths, "differences": tuple(unclear)})
    given = with_given_quality(profile, {"b@cpu": 0.21})
    assert [p.quality_from for p in given.paths] == ["bundle", "given", "bundle"]
    shown = {(d.path, d.other): (d.shown, d.kind) for d in given.differences}
    assert shown == {
        ("a@cpu", "b@cpu"): (True, "given"),
        ("b@cpu", "c@cpu"): (True, "given"),
        ("a@cpu", "c@cpu"): (False, "paired"),
    }
    with pytest.raises(ProfileError, match="'d@cpu': the profile has a@cpu, b@cpu, c@cpu"):
        with_given_quality(profile, {"d@cpu": 0.3})
