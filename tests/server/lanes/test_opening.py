"""Lanes as a plan names them."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

import pytest

from polyrec.models import memory
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes.runtime import Runtime
from polyrec.planner.plan import LaneKind, PlanError, PlannedLane
from polyrec.server.lanes.opening import LaneOpening, Paths, open_lanes
from tests.server.lanes.conftest import MakeBatch
from tests.server.lanes.lane_calls import executed, open_files, settled_future

PATH = "table-torch@cpu"


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_core_that_is_not_there_is_named(kind: LaneKind, paths: Paths) -> None:
    before = os.sched_getaffinity(0)
    planned = PlannedLane(name="cpu-3", kind=kind, cores=(0, 4000))
    with pytest.raises(PlanError, match=r"^lane 'cpu-3': there is no core 4000 for it; this machine has \d+"):
        LaneOpening(planned, paths, lambda _: None).open()
    assert os.sched_getaffinity(0) == before


def test_a_lane_takes_the_runtimes_it_is_given(paths: Paths, make_batch: MakeBatch) -> None:
    class Given(Exception):
        pass

    class Raising:
        def embed(self, batch: object) -> object:
            raise Given

    given: dict[str, Runtime] = {PATH: Raising()}  # type: ignore[dict-item]
    lane = LaneOpening(PlannedLane(name="cpu", kind="inline"), paths[:1], lambda _: None, given).open()
    with pytest.raises(Given):
        asyncio.run(executed(lane, PATH, make_batch(1, 3)))


def test_process_lanes_without_memory_for_them_are_refused_before_any_starts(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 200000 kB\nSwapFree: 0 kB\n")
    monkeypatch.setattr(memory, "PROC", tmp_path)
    openings = [
        LaneOpening(PlannedLane(name=f"cpu-{i}", kind="process"), paths[:1], lambda _: None) for i in (0, 1)
    ]
    with pytest.raises(RuntimeUnavailable, match=r"^not enough memory: process lanes \(2\) need at least"):
        open_lanes(openings)


def test_a_plan_with_a_lane_that_cannot_be_opened_leaves_none_open(paths: Paths) -> None:
    path, bundle = paths[0]
    elsewhere = [(path.model_copy(update={"device": "teapot"}), bundle)]
    sound = [
        LaneOpening(PlannedLane(name=kind, kind=kind), paths[:1], lambda _: None)
        for kind in ("inline", "process")
    ]
    lanes = open_lanes(sound)
    try:
        assert [lane.name for lane in lanes] == ["inline", "process"]
        assert all(lane.alive for lane in lanes)
    finally:
        for lane in lanes:
            lane.close()
    broken = LaneOpening(PlannedLane(name="broken", kind="thread"), elsewhere, lambda _: None)
    gc.collect()  # what other tests left open may be closed meanwhile
    files = open_files()
    with pytest.raises(RuntimeUnavailable, match="torch has no device 'teapot'"):
        open_lanes([*sound, broken])
    assert open_files() <= files


def test_a_thread_is_pinned_and_leaves_the_loop_free(
    paths: Paths, runtimes: dict[str, Runtime], make_batch: MakeBatch
) -> None:
    """The runtime waits for the loop, so in the loop's own thread it would wait forever."""
    gate = threading.Event()
    cores: list[set[int]] = []

    class Gated:
        def embed(self, batch: object) -> object:
            cores.append(os.sched_getaffinity(0))
            assert gate.wait(30)
            return runtimes[PATH].embed(batch)  # type: ignore[arg-type]

        def dense(self, embedded: object) -> object:
            return runtimes[PATH].dense(embedded)

    planned = PlannedLane(name="gated", kind="thread", cores=(0,))
    given: dict[str, Runtime] = {PATH: Gated()}  # type: ignore[dict-item]
    lane = LaneOpening(planned, paths[:1], lambda _: None, given).open()

    async def open_the_gate() -> None:
        outcome = settled_future(lane, PATH, make_batch(2, 3))
        await asyncio.sleep(0)
        gate.set()
        assert not isinstance(await asyncio.wait_for(outcome, 30), Exception)

    before = os.sched_getaffinity(0)
    asyncio.run(open_the_gate())
    lane.close()
    assert cores == [{0}]
    assert os.sched_getaffinity(0) == before
