"""Tests the process of a process lane, which may die, stop, or lose its server."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyrec.models import memory
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import Batch, Block
from polyrec.planner.plan import PlannedLane
from polyrec.server.lanes.child import Child
from polyrec.server.lanes.lane import ExecutionFailed, Lane, LaneDied
from polyrec.server.lanes.opening import LaneOpening, Paths, task_of
from tests.server.lanes.conftest import MakeBatch
from tests.server.lanes.lane_calls import (
    LIVENESS_S,
    ends,
    executed,
    open_files,
    settled_future,
    worker_processes,
)

ROOT = Path(__file__).parents[3]
PATH = "table-torch@cpu"
PROCESS = PlannedLane(name="cpu-1", kind="process")


class Deaths:
    """Records the lane that died, and sets an event."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.heard = asyncio.Event()

    def __call__(self, lane: Lane) -> None:
        assert not lane.alive
        self.lanes.append(lane)
        self.heard.set()


@pytest.fixture
def deaths() -> Deaths:
    return Deaths()


@pytest.fixture
def lane(paths: Paths, deaths: Deaths) -> Iterator[Lane]:
    lane = LaneOpening(PROCESS, paths, deaths).open()
    yield lane
    lane.close()


@pytest.fixture(scope="module")
def steady(paths: Paths) -> Iterator[Lane]:
    """A lane process that is never killed."""
    lane = LaneOpening(PlannedLane(name="steady", kind="process"), paths, Deaths()).open()
    yield lane
    lane.close()


def pid_of(lane: Lane) -> int:
    assert lane.pid is not None
    return lane.pid


def test_a_worker_killed_while_executing_settles_its_batch_and_comes_back(
    lane: Lane, deaths: Deaths, make_batch: MakeBatch, runtimes: dict[str, Runtime]
) -> None:
    batch = make_batch(1, 30)

    async def kill_and_restart() -> None:
        first = pid_of(lane)
        os.kill(first, signal.SIGSTOP)  # so that it is surely not done before it is killed
        outcome = settled_future(lane, PATH, batch)
        os.kill(first, signal.SIGKILL)
        died = await asyncio.wait_for(outcome, LIVENESS_S)
        assert isinstance(died, LaneDied)
        assert str(died) == f"lane 'cpu-1': process {first} was killed by SIGKILL"
        assert deaths.lanes == [lane]
        assert (lane.alive, lane.pid) == (False, None)
        with pytest.raises(LaneDied, match="lane 'cpu-1'"):
            await executed(lane, PATH, batch)
        await asyncio.gather(lane.restart(), lane.restart())
        assert lane.alive
        assert lane.pid != first
        got = (await executed(lane, PATH, batch)).probabilities
        np.testing.assert_allclose(got, runtimes[PATH].predict(batch), rtol=0, atol=1e-6)
        assert len(deaths.lanes) == 1

    asyncio.run(kill_and_restart())


def test_a_worker_killed_while_idle_restarts_with_the_served_bundle(
    paths: Paths,
    deaths: Deaths,
    make_batch: MakeBatch,
    runtimes: dict[str, Runtime],
    tmp_path: Path,
) -> None:
    """Also if that has been replaced on disk meanwhile."""
    folder = Path(shutil.copytree(paths[0][1].path, tmp_path / "table"))
    here = load_bundle(folder)
    lane = LaneOpening(PROCESS, [(path, here) for path, _ in paths], deaths).open()
    batch = make_batch(3, 9)

    async def kill() -> None:
        lane.attach()
        os.kill(pid_of(lane), signal.SIGKILL)
        await asyncio.wait_for(deaths.heard.wait(), LIVENESS_S)
        assert deaths.lanes == [lane]
        shutil.rmtree(folder)
        await lane.restart()
        for path, _ in paths:
            got = (await executed(lane, path.name, batch)).probabilities
            np.testing.assert_allclose(got, runtimes[path.name].predict(batch), atol=1e-6)

    try:
        asyncio.run(kill())
    finally:
        lane.close()


def test_a_worker_restarts_only_once_there_is_memory_for_it(
    lane: Lane, deaths: Deaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 100000 kB\nSwapFree: 0 kB\n")

    async def kill() -> None:
        lane.attach()
        os.kill(pid_of(lane), signal.SIGKILL)
        await asyncio.wait_for(deaths.heard.wait(), LIVENESS_S)
        with monkeypatch.context() as short:
            short.setattr(memory, "PROC", tmp_path)
            with pytest.raises(RuntimeUnavailable, match=r"^not enough memory: libraries of lane 'cpu-1'"):
                await lane.restart()
        assert not lane.alive
        await lane.restart()
        assert lane.alive

    asyncio.run(kill())


def test_every_death_is_logged_whether_the_lane_was_busy_or_not(
    paths: Paths, deaths: Deaths, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    both = [LaneOpening(PlannedLane(name=f"cpu.{i}", kind="process"), paths, deaths).open() for i in range(2)]
    pids = [pid_of(lane) for lane in both]

    async def kill() -> None:
        os.kill(pids[0], signal.SIGSTOP)
        outcome = settled_future(both[0], PATH, make_batch(1, 3))
        both[1].attach()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(LIVENESS_S):
            await outcome
            while len(deaths.lanes) < len(both):
                deaths.heard.clear()
                await deaths.heard.wait()

    asyncio.run(kill())
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"lane cpu.{i} died: process {pid} was killed by SIGKILL" for i, pid in enumerate(pids)
    ]


def test_a_lane_closed_while_it_restarts_leaves_no_process(lane: Lane, deaths: Deaths) -> None:
    async def close_meanwhile() -> None:
        lane.attach()
        os.kill(pid_of(lane), signal.SIGKILL)
        await asyncio.wait_for(deaths.heard.wait(), LIVENESS_S)
        restarting = asyncio.ensure_future(lane.restart())
        await asyncio.sleep(0)
        lane.close()
        await asyncio.gather(restarting, return_exceptions=True)
        assert not lane.alive

    asyncio.run(close_meanwhile())
    assert worker_processes() == []


def test_a_lane_closed_while_it_restarts_leaves_no_unhandled_error(
    lane: Lane, deaths: Deaths, caplog: pytest.LogCaptureFixture
) -> None:
    """As at a reload: the restart is canceled, then the lane is closed."""

    async def close_after_cancelling() -> None:
        lane.attach()
        os.kill(pid_of(lane), signal.SIGKILL)
        await asyncio.wait_for(deaths.heard.wait(), LIVENESS_S)
        restart = asyncio.ensure_future(lane.restart())
        while not worker_processes():  # until the next worker is starting
            await asyncio.sleep(0)
        (restarting,) = asyncio.all_tasks() - {asyncio.current_task(), restart}
        restart.cancel()
        lane.close()
        await asyncio.wait([restarting])

    asyncio.run(close_after_cancelling())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_stalled_worker_answers_when_it_goes_on(
    steady: Lane, make_batch: MakeBatch, runtimes: dict[str, Runtime]
) -> None:
    batch = make_batch(2, 30)

    async def stall() -> None:
        os.kill(pid_of(steady), signal.SIGSTOP)
        outcome = settled_future(steady, PATH, batch)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(outcome), 0.05)
        os.kill(pid_of(steady), signal.SIGCONT)
        got = await asyncio.wait_for(outcome, LIVENESS_S)
        assert not isinstance(got, Exception)
        np.testing.assert_allclose(got.probabilities, runtimes[PATH].predict(batch), rtol=0, atol=1e-6)

    asyncio.run(stall())


def test_signals_of_a_terminal_or_a_supervisor_are_the_servers_affair(
    steady: Lane, make_batch: MakeBatch
) -> None:
    pid = pid_of(steady)
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, signal_number)
    asyncio.run(executed(steady, PATH, make_batch(3, 3)))
    assert os.getpgid(pid) != os.getpgid(0)
    assert steady.pid == pid


def test_an_error_comes_back_in_one_line(steady: Lane, make_batch: MakeBatch) -> None:
    batch = make_batch(1, 4)
    batch.candidate.ranks[0, 0] = 10**9
    with pytest.raises(ExecutionFailed) as caught:
        asyncio.run(executed(steady, PATH, batch))
    assert "index out of range" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_batch_that_cannot_be_written_is_settled_with_why(steady: Lane, make_batch: MakeBatch) -> None:
    batch = make_batch(1, 4)
    block = batch.candidate
    fractions = Block(block.dense, block.ranks + 0.5, block.bag_values, block.bag_offsets)
    with pytest.raises(TypeError, match="Cannot cast"):
        asyncio.run(executed(steady, PATH, Batch(batch.context, fractions)))
    asyncio.run(executed(steady, PATH, batch))


def test_a_batch_larger_than_the_mailbox_makes_it_grow(
    steady: Lane, make_batch: MakeBatch, runtimes: dict[str, Runtime]
) -> None:
    for rows in (40_000, 3, 90_000, 5):
        batch = make_batch(rows, rows, 7)
        got = asyncio.run(executed(steady, PATH, batch)).probabilities
        np.testing.assert_allclose(got, runtimes[PATH].predict(batch), rtol=0, atol=1e-6)


def test_rows_are_shared_and_not_copied(steady: Lane, paths: Paths, make_batch: MakeBatch) -> None:
    asyncio.run(executed(steady, PATH, make_batch(6, 500)))
    mappings = _mappings(pid_of(steady), "embeddings.safetensors")
    assert mappings
    assert sum(m["Rss"] for m in mappings) > 0
    assert sum(m["Private_Dirty"] + m["Anonymous"] for m in mappings) == 0


def test_a_worker_outlives_the_thread_that_opened_it_but_not_its_lane(
    paths: Paths, make_batch: MakeBatch
) -> None:
    shared, files = set(os.listdir("/dev/shm")), open_files()
    opened: list[Lane] = []
    pinned = PROCESS.model_copy(update={"cores": (0,)})
    opening = threading.Thread(target=lambda: opened.append(LaneOpening(pinned, paths[:1], Deaths()).open()))
    opening.start()
    opening.join()
    (lane,) = opened
    pid = pid_of(lane)
    assert os.sched_getaffinity(pid) == {0}
    for _ in range(2):  # from one event loop after another
        asyncio.run(executed(lane, PATH, make_batch(7, 3)))

    async def close_while_it_stands_still() -> None:
        os.kill(pid, signal.SIGSTOP)
        settled_future(lane, PATH, make_batch(8, 3))
        lane.close()

    asyncio.run(close_while_it_stands_still())
    lane.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert open_files() == files
    assert set(os.listdir("/dev/shm")) <= shared


SERVER = """
import os, signal, sys
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.plan import PlannedLane, PlannedPath
from polyrec.server.lanes.opening import LaneOpening

path = PlannedPath(name="p", bundle=sys.argv[1], runtime="torch")
planned = PlannedLane(name="orphan", kind="process")
lane = LaneOpening(planned, [(path, load_bundle(sys.argv[1]))], print).open()
os.kill(lane.pid, signal.SIGSTOP)  # the kernel has to do it: this worker cannot
print(lane.pid, flush=True)
signal.pause()
"""


@pytest.mark.long
def test_a_server_that_is_killed_takes_its_workers_along(bundle_dir: Path) -> None:
    shared = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", SERVER, str(bundle_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        worker = os.pidfd_open(int(server.stdout.readline()))
        server.kill()
    try:
        assert ends(worker)
    finally:
        os.close(worker)
    # semaphores of other tests' processes come and go
    assert {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")} <= shared


@pytest.mark.parametrize(("spare", "end_s"), [(False, 0), (True, math.inf)])
def test_a_worker_that_takes_long_to_end_is_reaped_later(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, spare: bool, end_s: float
) -> None:
    monkeypatch.setattr("polyrec.server.lanes.child.END_S", end_s)
    child = Child("cpu-1", task_of(PROCESS, paths).model_dump_json(), spare=spare)
    child.end()
    for thread in threading.enumerate():
        if thread.name == f"polyrec-reap-{child.pid}":
            thread.join(LIVENESS_S)
    assert worker_processes() == []


def _mappings(pid: int, name: str) -> list[dict[str, int]]:
    """The mappings of a file by a process, in KiB by kind."""
    found: list[dict[str, int]] = []
    wanted = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            wanted = line.endswith(name)
            if wanted:
                found.append({})
        elif wanted and rest[-1] == "kB":
            found[-1][first.rstrip(":")] = int(rest[0])
    return found
