"""Process lanes over tiers: they live on updates, die without harm to the rows, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.embeddings.table import TableStage
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import F32, Batch
from polyrec.models.tiers.layout import HOST
from polyrec.models.tiers.shared.resolved import Resolved
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_tiers
from polyrec.models.tiers.tier_settings import TierSettings
from polyrec.planner.plan import PlannedLane
from polyrec.server.lanes.lane import Lane, LaneDied
from polyrec.server.lanes.opening import LaneOpening, Paths
from polyrec.server.lanes.resolving import PathRows, Resolution, Resolver
from polyrec.server.lanes.tiered_runtime import BatchView, TieredRuntime
from tests.models.random_batches import random_batch
from tests.models.tiers.worlds import encoder_of, world
from tests.server.lanes.conftest import MakeBatch
from tests.server.lanes.lane_calls import LIVENESS_S, executed, open_files, settled_future

PATH = "table-onnx@cpu"


@pytest.fixture(params=["memory", "disk"])
def stack(request: pytest.FixtureRequest, bundle: Bundle, tmp_path: Path) -> Iterator[TierStack]:
    """All rows in shared memory, or three quarters of each table in a file."""
    settings = TierSettings(shared=True, directory=tmp_path)
    if request.param == "disk":
        cuts = {t: {"host": v.rows // 4, "disk": v.rows - v.rows // 4} for t, v in _vocabularies(bundle)}
        settings = TierSettings.model_validate(
            {"cuts": cuts, "cache_bytes": 8 * 4096, "directory": tmp_path, "shared": True}
        )
    stack = open_tiers(bundle, settings)
    yield stack
    stack.close()


def _vocabularies(bundle: Bundle) -> list[tuple[str, object]]:
    return list(bundle.encoder.vocabularies.items())


@pytest.fixture
def lane(paths: Paths, stack: TierStack) -> Iterator[Lane]:
    stacks = {path.name: stack for path, _ in paths}
    planned = PlannedLane(name="tiered", kind="process")
    lane = LaneOpening(planned, paths, lambda _: None, stacks=stacks).open()
    yield lane
    lane.close()


async def answered(lane: Lane, stack: TierStack, batch: Batch, path: str = PATH) -> F32:
    """Executes a batch in the newest view, as the executor does."""
    batch_view = BatchView.enter(stack)
    try:
        return (await executed(lane, path, batch_view.attach(batch))).probabilities
    finally:
        batch_view.leave()


def inside(stack: TierStack, bundle: Bundle, batch: Batch) -> F32:
    """The slow, obvious answer: a runtime over the same tiers in this process."""
    return TieredRuntime(open_runtime("onnx", bundle, tiers=stack)).predict(batch)


def test_a_process_lane_answers_as_a_runtime_in_the_servers_process(
    lane: Lane, stack: TierStack, bundle: Bundle, make_batch: MakeBatch
) -> None:
    async def ask() -> None:
        for seed, rows in enumerate((1, 23, 700, 5)):
            batch = make_batch(seed, rows, 3 if seed % 2 else None)
            for path in ("table-torch@cpu", PATH):
                got = await answered(lane, stack, batch, path)
                np.testing.assert_allclose(got, inside(stack, bundle, batch), rtol=0, atol=1e-6)

    asyncio.run(ask())
    assert stack.idle
    assert not stack.views.newest.readers


def test_batches_of_hot_rows_are_resolved_without_a_thread(tmp_path: Path) -> None:
    sizes, random = {"a": 3000, "b": 500}, np.random.default_rng(1)
    encoder = encoder_of(sizes)
    stack = world(encoder, tmp_path, (0.0, 0.5, 0.5), shared=True)
    rows = PathRows(stack, encoder.schema)
    layout = stack.tiers.layout
    hottest = dict(zip(sizes, layout.counts[layout.tier == HOST].tolist(), strict=True))
    for drawn, at_once in ((hottest, True), (sizes, False)):
        batch = random_batch(random, encoder.schema, drawn, 40)
        batch_view = BatchView.enter(stack)
        found = rows.resolve_at_once(batch_view.attach(batch))
        assert (found is not None) == at_once
        if found is not None:
            expected = rows.resolve(batch_view.attach(batch))
            np.testing.assert_array_equal(found.addresses, expected.addresses)
            assert found.at.size == expected.at.size == 0
            expected.release()
            found.release()
            outcomes: list[Resolution] = []
            resolver = Resolver("lane")
            resolver.begin(rows, batch_view.attach(batch), outcomes.append)
            assert isinstance(outcomes[0], Resolved)
            assert not stack.idle
            resolver.close()
            assert stack.idle
        batch_view.leave()
    assert stack.idle
    stack.close()


def test_a_lane_that_is_killed_comes_back_with_the_rows_as_updated(
    lane: Lane, stack: TierStack, bundle: Bundle, make_batch: MakeBatch
) -> None:
    batch = make_batch(4, 40)
    row_format = stack.tiers.row_format
    stage = bundle.stage()
    assert isinstance(stage, TableStage)
    rows = stage.rows.lookups(batch).rows()[:30]
    values = np.full((rows.size, row_format.width), 0.125, np.float32)

    async def run() -> None:
        before = await answered(lane, stack, batch)
        stack.update(rows, values.view(np.uint8).reshape(rows.size, -1))
        after = await answered(lane, stack, batch)
        assert np.abs(after - before).max() > 1e-4
        pid = lane.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        batch_view = BatchView.enter(stack)
        outcome = settled_future(lane, PATH, batch_view.attach(batch))
        os.kill(pid, signal.SIGKILL)
        died = await asyncio.wait_for(outcome, LIVENESS_S)
        assert isinstance(died, LaneDied)
        assert "was killed by SIGKILL" in str(died)
        batch_view.leave()
        await lane.restart()
        np.testing.assert_array_equal(await answered(lane, stack, batch), after)
        # nothing of the batch that died keeps the update from being written
        assert await asyncio.to_thread(stack.settle, 10.0)
        np.testing.assert_array_equal(await answered(lane, stack, batch), after)

    asyncio.run(run())
    np.testing.assert_allclose(
        asyncio.run(answered(lane, stack, batch)), inside(stack, bundle, batch), atol=1e-6
    )


def test_closing_a_lane_in_the_middle_of_a_batch_frees_its_rows_and_memory(
    paths: Paths, bundle: Bundle, make_batch: MakeBatch
) -> None:
    gc.collect()  # an earlier test's memory, if freed in between, would be counted as this one's
    memory, names = open_files(), set(os.listdir("/dev/shm"))
    asyncio.run(_close_in_the_middle(paths, open_tiers(bundle, TierSettings(shared=True)), make_batch(8, 3)))
    gc.collect()
    assert open_files() <= memory
    assert set(os.listdir("/dev/shm")) <= names


async def _close_in_the_middle(paths: Paths, stack: TierStack, batch: Batch) -> None:
    """Executes a batch on a lane that stands still, and closes it."""
    stacks = {path.name: stack for path, _ in paths}
    planned = PlannedLane(name="tiered", kind="process")
    lane = LaneOpening(planned, paths, lambda _: None, stacks=stacks).open()
    assert lane.pid is not None
    os.kill(lane.pid, signal.SIGSTOP)
    batch_view = BatchView.enter(stack)
    settled_future(lane, PATH, batch_view.attach(batch))
    assert not stack.idle
    lane.close()
    batch_view.leave()
    assert stack.idle
    stack.close()


def test_rows_are_mapped_and_not_copied(lane: Lane, stack: TierStack, make_batch: MakeBatch) -> None:
    asyncio.run(answered(lane, stack, make_batch(6, 500)))
    slab = Path(f"/proc/{lane.pid}/smaps").read_text().split("memfd:polyrec rows")[1].split("VmFlags")[0]
    kinds = {line.split()[0]: line.split()[1] for line in slab.splitlines()[1:] if "kB" in line}
    assert int(kinds["Rss:"]) > 0
    assert int(kinds["Anonymous:"]) == 0
