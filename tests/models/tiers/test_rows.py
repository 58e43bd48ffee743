"""Tiers of any cuts return exactly the rows of the flat table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.embeddings.store import open_rows, quantize
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.near.near_rows import NearRows
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.tier_settings import TierSettings
from tests.models.random_batches import random_batch, random_schema, random_table_rows
from tests.models.tiers.worlds import check_resolved

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")


def random_cuts(random: np.random.Generator, sizes: dict[str, int]) -> dict[str, dict[str, int]]:
    """Each table in up to three tiers; some empty, some tables not named."""
    cuts = {}
    for table, rows in sizes.items():
        if random.random() < 0.8:
            device, host = np.sort(random.integers(0, rows + 1, 2)).tolist()
            if random.random() < 0.3:
                device = 0
            cuts[table] = {"device": device, "host": host - device, "disk": rows - host}
    return cuts


def packed(random: np.random.Generator, rows: int, width: int, precision: Precision) -> torch.Tensor:
    return quantize(torch.from_numpy(random.standard_normal((rows, width)).astype(np.float32)), precision)


@given(st.integers(0, 2**32), st.sampled_from(PRECISIONS), st.sampled_from(["io_uring", "threads"]))
@settings(max_examples=60)
def test_any_tiers_give_bit_identical_rows_to_the_flat_table_with_updates_between(
    tmp_path_factory: pytest.TempPathFactory, seed: int, precision: Precision, reader: str
) -> None:
    random = np.random.default_rng(seed)
    width = int(random.choice([2, 4, 16, 64, 1100]))
    sizes = {f"t{i}": int(random.integers(1, 4000 // width + 30)) for i in range(int(random.integers(1, 5)))}
    total = sum(sizes.values())
    row_format = RowFormat(width, precision)
    weight = packed(random, total, width, precision)
    flat = open_rows(weight.clone(), precision)
    placement = TierSettings.model_validate(
        {
            "cuts": random_cuts(random, sizes),
            "cache_bytes": 4096 * int(random.choice([1, 5, 12, 40])),
            "directory": tmp_path_factory.getbasetemp(),
            "reader": reader,
        }
    )
    stack = open_stack(rows_of_weight(weight, row_format, sizes), placement)
    try:
        rows = TieredRows(stack)
        with torch.inference_mode():
            for _ in range(4):
                count = int(random.integers(0, 200))
                index = torch.from_numpy(random.integers(0, total, count))
                if random.random() < 0.5:
                    rows.prefetch(index.numpy())
                assert torch.equal(rows.gather(index), flat.gather(index))
                offsets = torch.from_numpy(bags(random, count))
                assert torch.equal(rows.pool(index, offsets), flat.pool(index, offsets))
                changed = random.integers(0, total, int(random.integers(1, 20)))
                new = packed(random, changed.size, width, precision)
                last_wins(flat.weight.data, changed, new)
                stack.update(changed, new.view(torch.uint8).numpy().reshape(-1, row_format.bytes))
                release(stack, random)
        assert stack.settle(10.0)
        assert not stack.views.newest.layers
        everything = torch.arange(total)
        with torch.inference_mode():
            assert torch.equal(rows.gather(everything), flat.gather(everything))
    finally:
        stack.close()


def release(stack: TierStack, random: np.random.Generator) -> None:
    """Releases some rows of the prefix to the cache, if there are any."""
    prefix = stack.tiers.prefix
    if stack.releaser is not None and prefix is not None and prefix.releasable:
        stack.releaser.release(int(random.integers(1, prefix.releasable + 1)))


def bags(random: np.random.Generator, count: int) -> I64:
    ends = np.sort(random.integers(0, count + 1, 3))
    return np.concatenate(([0], ends, [count])).astype(np.int64)


def last_wins(weight: torch.Tensor, rows: I64, values: torch.Tensor) -> None:
    for row, value in zip(rows.tolist(), values, strict=True):
        weight[row] = value


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", [None, 4])
def test_rows_of_hot_batches_are_those_of_any_gather(
    precision: Precision, width: int | None, tmp_path: Path
) -> None:
    random = np.random.default_rng(3)
    schema = random_schema(random)
    while any(f.multi for f in schema.categorical):
        schema = random_schema(random)
    sizes = random_table_rows(random, schema)
    row_format, total = RowFormat(8, precision), sum(sizes.values())
    cuts = {t: {"host": n - n // 3, "disk": n // 3} for t, n in sizes.items()}
    # no room for an index of the prefix, which therefore stays
    settings = TierSettings.model_validate({"cuts": cuts, "cache_bytes": 4096, "directory": tmp_path})
    weight = packed(random, total, 8, precision)
    stack = open_stack(rows_of_weight(weight, row_format, sizes), settings)
    assert stack.releaser is None
    stack.sample.every = 1
    rows, fused = TieredRows(stack, width), FusedRows(schema, sizes)
    near, gathered = NearRows(stack.tiers.layout, stack.tiers.prefix, fused), 0
    empty = rows.gather_near(near, random_batch(random, schema, sizes, 0), np.empty(0, np.int64))
    assert empty is not None
    assert empty.shape == (0, width or 8)
    for step in range(40):
        if step % 10 == 5:
            stack.update(np.arange(total), packed(random, total, 8, precision).view(torch.uint8).numpy())
        if step % 10 == 8:
            assert stack.settle(10.0)
        drawn = {t: max(n - n // 3, 1) for t, n in sizes.items()} if step % 3 else sizes
        batch = random_batch(random, schema, drawn, int(random.integers(1, 30)))
        index = fused.lookups(batch).singles
        unsettled = bool(stack.views.newest.layers)
        before = stack.figures().tables
        stack.sample.take(0)
        found = rows.gather_near(near, batch, np.empty(index.size, np.int64))
        # updates may be settled during the gather, but none arrive
        others = near.others(batch)
        assert others is not None
        assert not others.size if found is not None else unsettled or others.size
        if found is None:
            assert stack.figures().tables == before
            continue
        gathered += 1
        found, own = found.copy(), stack.figures().tables
        sampled, _ = stack.sample.take(0)
        np.testing.assert_array_equal(sampled, index)
        np.testing.assert_array_equal(found, rows.gather(torch.from_numpy(index)).numpy())
        for table, tiers in stack.figures().tables.items():
            for tier, after in tiers.items():
                half = np.add(before[table][tier], after) / 2
                np.testing.assert_array_equal(own[table][tier], half)
        check_resolved(stack, stack.views.newest, near, batch, index)
    assert gathered > 10
    stack.close()


def test_a_cache_of_one_page_gathers_a_batch_of_many_pages(tmp_path: Path) -> None:
    weight = packed(np.random.default_rng(0), 5000, 16, "fp32")
    row_format = RowFormat(16, "fp32")
    placement = TierSettings.model_validate(
        {"cuts": {"t": {"disk": 5000}}, "cache_bytes": 4096, "directory": tmp_path}
    )
    stack = open_stack(rows_of_weight(weight, row_format, {"t": 5000}), placement)
    index = torch.from_numpy(np.random.default_rng(1).integers(0, 5000, 300))
    assert torch.equal(TieredRows(stack).gather(index), weight[index])
    levels = stack.figures().levels
    assert levels["cache"].lookups == 300
    assert levels["disk"].hits == 300 - levels["cache"].hits > 200
    assert not list(tmp_path.iterdir()), "the file has no name, so that it goes with the process"
    stack.close()
