from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tiers.served_model import bundle_of
from polyrec.measure.profile.candidates import Candidate, candidates
from polyrec.measure.profile.cuts import cut, measurable, measure_cuts, stored_tables
from polyrec.measure.profile.log import SampleLog
from polyrec.measure.profile.measure import ProfileSettings
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.stage import open_tiers
from polyrec.planner.devices import Device
from polyrec.planner.tier_times import CutTimes


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    bundle = bundle_of(tmp_path_factory.mktemp("models") / "table", 4000, 1.0, 16)
    return candidate_of(bundle)


def candidate_of(bundle: Bundle) -> Candidate:
    cpu = Device(name="cpu", kind="cpu", lanes=1, memory_bytes=10**9, runtimes=("onnx",))
    (found,) = candidates({"table": bundle}, [cpu], None, ["fp32"], bundle.path.parent, "")
    return found


def test_a_bundle_of_few_rows_is_not_measured_in_tiers(candidate: Candidate, bundle: Bundle) -> None:
    assert measurable([candidate]) == [candidate]
    assert not measurable([candidate_of(bundle)])


def test_a_cut_opens_as_it_is_computed(candidate: Candidate, tmp_path: Path) -> None:
    tables = stored_tables(candidate.bundle)
    tiers = cut(tables, 0.3, tmp_path)
    stack = open_tiers(candidate.bundle, tiers.settings)
    try:
        layout = stack.tiers.layout
        cuts = [layout.cuts[name][1] for name in tables.names]
        assert cuts == list(tiers.opened.prefix)
        assert stack.tiers.disk is not None
        assert stack.tiers.disk.row_cache.slots == tiers.opened.slots
        assert stack.tiers.slab.pages == tiers.opened.page_slots
    finally:
        stack.close()


@pytest.mark.long
def test_a_path_is_measured_at_each_cut_and_resumed(candidate: Candidate, tmp_path: Path) -> None:
    folder = candidate.bundle.path.parent
    asked: list[str] = []

    def measure() -> CutTimes:
        with SampleLog(tmp_path / "log", {}) as log:
            settings = ProfileSettings(largest=16, seconds=0.2, evict_bytes=0)
            return measure_cuts(
                candidate, settings, log, lambda _, what: asked.append(what), folder, (0.5, 0.1), (1, 16)
            )

    times = measure()
    assert measure() == times
    assert len(asked) == 4
    assert times.path == "table@cpu"
    assert (times.row_bytes, times.error is not None) == (64, True)
    shapes = [(p.rows, p.ahead) for p in times.points]
    assert shapes == 2 * [(1, False), (1, True), (16, False), (16, True)]
    for point in times.points:
        assert point.lookups == 26 * point.rows
        assert 0 < point.below <= point.lookups
        assert point.memory_s > 0
        assert point.seconds > 0
    half, tenth = (next(p for p in times.points[i:] if p.rows == 16) for i in (0, 4))
    assert half.memory_bytes > tenth.memory_bytes
    assert half.reads < tenth.reads
    # the files of the tiers are gone
    assert [file.name for file in folder.iterdir()] == ["table"]
