"""Lookups in one pass against the flat table: both ways, on the cpu; on a GPU where there is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.store import quantize
from polyrec.models.embeddings.table import TableStage
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.schema import Categorical, Label, Schema, Split
from polyrec.models.tiers.device.fused import PLANNED, FusedLookups, can_fuse
from polyrec.models.tiers.device.transfer_costs import COPIED, DIRECT, EVERY
from polyrec.models.tiers.layout import DEVICE
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.tier_settings import TierSettings
from tests.models.random_batches import random_batch

WIDTH = 16
ROWS = {"a": 300, "b": 40, "c": 150}


def schema_of(bags: bool) -> Schema:
    """Context and candidate features of three tables; multi-valued ones of both, by sum and by mean."""
    features = [
        Categorical(name="a", type="integer", role="context"),
        Categorical(name="b", type="integer"),
        Categorical(name="c", type="integer"),
    ]
    if bags:
        features += [
            Categorical(name="a_list", type="integer", table="a", pooling="mean", role="context"),
            Categorical(name="b_list", type="integer", table="b", pooling="sum"),
            Categorical(name="c_list", type="integer", table="c", pooling="mean"),
        ]
    return Schema(
        name="fused",
        categorical=tuple(features),
        label=Label(column="label"),
        split=Split(rule="hash", columns=("b",)),
    )


class World:
    """One model flat, and over tiers with the same rows."""

    def __init__(
        self,
        directory: Path,
        bags: bool = True,
        precision: Precision = "fp32",
        seed: int = 0,
        disk: bool = False,
        device: str = "cpu",
    ) -> None:
        random = np.random.default_rng(seed)
        self.random, self.schema = random, schema_of(bags)
        generator = torch.Generator().manual_seed(seed)
        self.weight = quantize(torch.randn(sum(ROWS.values()), WIDTH, generator=generator), precision)
        self.row_format = RowFormat(WIDTH, precision)
        cuts = {}
        for table, rows in ROWS.items():
            near = int(random.integers(1, rows))
            host = int(random.integers(0, rows - near)) if disk else rows - near
            cuts[table] = {"device": near, "host": host, "disk": rows - near - host}
        settings = {"cuts": cuts, "cache_bytes": 1 << 16, "directory": directory}
        placement = TierSettings.model_validate(settings)
        stored = rows_of_weight(self.weight, self.row_format, ROWS)
        self.stack: TierStack = open_stack(stored, placement, device=device)
        self.flat = TableStage(self.schema, ROWS, self.weight, precision)

    def over(self, mode: int | None, planned: int = PLANNED) -> tuple[TableStage, FusedLookups]:
        rows = TieredRows(self.stack)
        rows.fused = FusedLookups(self.stack, mode, planned)
        return TableStage.over(self.schema, ROWS, rows), rows.fused

    def batch(self, rows: int, contexts: int | None) -> Batch:
        return random_batch(self.random, self.schema, ROWS, rows, contexts)

    def renew(self) -> None:
        """Every third row gets the value of its neighbor, here and there."""
        stored = self.flat.state_dict()["store.weight"]
        rows = np.arange(0, stored.shape[0], 3)
        values = stored[torch.from_numpy((rows + 1) % stored.shape[0])].clone()
        self.stack.update(rows, values.view(torch.uint8).numpy().reshape(rows.size, -1))
        stored[torch.from_numpy(rows)] = values

    def same(self, stage: TableStage, batch: Batch, exact: bool = True) -> None:
        with torch.inference_mode():
            got, wanted = stage(batch), self.flat(batch)
        for mine, theirs in zip(got, wanted, strict=True):
            if exact:
                np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
            else:
                torch.testing.assert_close(mine.cpu(), theirs)


@given(
    seed=st.integers(0, 10_000),
    bags=st.booleans(),
    disk=st.booleans(),
    precision=st.sampled_from(["fp32", "bf16", "int8", "int4"]),
    rows=st.integers(1, 40),
    contexts=st.sampled_from([None, 1, 4]),
    mode=st.sampled_from([DIRECT, COPIED, None]),
    planned=st.sampled_from([0, 20, PLANNED]),
)
@settings(max_examples=60, deadline=None)
def test_fused_look_ups_are_the_flat_tables(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    bags: bool,
    disk: bool,
    precision: Precision,
    rows: int,
    contexts: int | None,
    mode: int | None,
    planned: int,
) -> None:
    world = World(tmp_path_factory.mktemp("tiers"), bags, precision, seed, disk)
    stage, fused = world.over(mode, planned)
    for _ in range(3):
        world.same(stage, world.batch(rows, contexts))
    assert sum(fused.batches_by_transfer) == 3
    if mode is not None and not disk:
        assert (
            fused.batches_by_transfer[mode] >= 1 or mode == COPIED
        )  # a batch without a miss has nothing to copy
    assert world.stack.figures().batches == 3
    world.stack.close()


@pytest.mark.parametrize("bags", [False, True])
def test_look_ups_placed_by_the_device_are_counted_as_those_placed_by_the_host(
    tmp_path: Path, bags: bool
) -> None:
    told = []
    for planned in (0, PLANNED):
        world = World(tmp_path, bags)
        stage, fused = world.over(DIRECT, planned)
        for _ in range(4):
            world.same(stage, world.batch(30, 3))
        fused.learn()  # the device's counts of the last batch
        figures = world.stack.figures()
        told.append((figures.batches, figures.tables, figures.levels["device"].hits))
    assert told[0] == told[1]
    assert told[0][2] > 0


@pytest.mark.parametrize("mode", [DIRECT, COPIED])
def test_new_values_are_seen_before_and_after_they_are_written(tmp_path: Path, mode: int) -> None:
    world = World(tmp_path)
    stage, _ = world.over(mode)
    held = world.stack.views.enter()  # the older view is still being read, so nothing can be written
    world.renew()
    assert world.stack.views.newest.layers
    world.same(stage, world.batch(30, 3))
    world.stack.views.leave(held)
    assert world.stack.settle(10)
    assert not world.stack.views.newest.layers
    world.same(stage, world.batch(30, 3))
    assert world.stack.figures().replaced > 0
    world.stack.close()


def test_the_faster_mode_is_learned_while_serving(tmp_path: Path) -> None:
    world = World(tmp_path, bags=False)
    stage, fused = world.over(None)
    batch = world.batch(40, None)
    for _ in range(20):
        world.same(stage, batch)
    assert min(fused.batches_by_transfer) >= 1
    tier, _ = world.stack.tiers.layout.locate(world.flat.rows.lookups(batch).rows())
    lookups, misses = tier.size, int((tier != DEVICE).sum())
    costs = [fused.transfer_costs.cost(mode, lookups, misses) for mode in (DIRECT, COPIED)]
    assert all(c > 0 for c in costs)


def test_the_slower_mode_is_retried_where_the_device_locates_rows(tmp_path: Path) -> None:
    world = World(tmp_path, bags=False)
    stage, fused = world.over(None, planned=1)
    batch = world.batch(40, None)
    world.same(stage, batch)  # gives the miss rate
    tier, _ = world.stack.tiers.layout.locate(world.flat.rows.lookups(batch).rows())
    for _ in range(3 * EVERY):
        fused.transfer_costs.record(DIRECT, tier.size, int((tier != DEVICE).sum()), 1e-6)
        fused.transfer_costs.record(COPIED, tier.size, int((tier != DEVICE).sum()), 1.0)
        world.same(stage, batch)
    assert fused.batches_by_transfer[COPIED] >= 3


def test_a_batch_of_no_rows_gives_no_vectors(tmp_path: Path) -> None:
    world = World(tmp_path)
    stage, _ = world.over(None)
    whole = world.batch(4, None)
    none = np.arange(0)
    batch = Batch(whole.context.take(none), whole.candidate.take(none), None)
    world.same(stage, batch)
    world.stack.close()


def test_look_ups_on_the_cpu_are_not_fused_by_default(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert not can_fuse(world.stack)
    assert TieredRows(world.stack).fused is None
    world.stack.close()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("mode", [DIRECT, COPIED, None])
@pytest.mark.parametrize("bags", [False, True])
def test_on_a_gpu_look_ups_are_the_flat_tables(
    tmp_path: Path, precision: Precision, mode: int | None, bags: bool
) -> None:
    for disk, planned in ((False, 0), (False, PLANNED), (True, 0)):
        world = World(tmp_path, bags, precision, disk=disk, device="cuda")
        assert can_fuse(world.stack) == (precision != "int4")
        stage, fused = world.over(mode, planned)
        assert world.stack.tiers.slab.pinned
        for contexts in (None, 1, 4):
            for rows in (1, 40, 700):
                world.same(stage, world.batch(rows, contexts), exact=False)
        assert sum(fused.batches_by_transfer) == 9
        world.renew()
        for _ in range(5):
            world.same(stage, world.batch(60, 3), exact=False)
        assert world.stack.settle(10)
        world.same(stage, world.batch(60, 3), exact=False)
        world.stack.close()
