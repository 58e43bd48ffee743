"""Rows read from another mapping of the slab are those of the flat table, whatever tier they are in."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.store import open_rows
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.shared.resolved import Resolved
from polyrec.models.tiers.shared.slab_reader import SlabReader
from polyrec.models.tiers.slab import Slab
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.tier_settings import TierSettings
from tests.models.tiers.test_rows import PRECISIONS, last_wins, packed, random_cuts, release


def other_end(stack: TierStack) -> SlabReader:
    """A reader over a second mapping of the slab, as another process has it."""
    slab = stack.tiers.slab
    assert slab.fd is not None
    mapped = Slab(slab.row_format, slab.rows, slab.pages, slab.page_bytes, given=os.dup(slab.fd))
    return SlabReader(mapped, stack.tiers.layout.total)


def resolved(stack: TierStack, rows: I64) -> Resolved:
    """Resolves rows in the newest view, to be released by the caller; the view is left at once."""
    view = stack.views.enter()
    try:
        return stack.resolve(view, rows)
    finally:
        stack.views.leave(view)


@given(st.integers(0, 2**32), st.sampled_from(PRECISIONS))
@settings(max_examples=40, deadline=None)
def test_a_reader_of_the_slab_gives_bit_identical_rows_to_the_flat_table_with_updates_between(
    tmp_path_factory: pytest.TempPathFactory, seed: int, precision: Precision
) -> None:
    random = np.random.default_rng(seed)
    width = int(random.choice([2, 4, 16, 64]))
    sizes = {f"t{i}": int(random.integers(1, 900)) for i in range(int(random.integers(1, 5)))}
    total = sum(sizes.values())
    row_format = RowFormat(width, precision)
    weight = packed(random, total, width, precision)
    flat = open_rows(weight.clone(), precision)
    cuts = random_cuts(random, sizes)
    for own in cuts.values():
        own["host"] += own.pop("device")
    placement = TierSettings.model_validate(
        {
            "cuts": cuts,
            "cache_bytes": 4096 * int(random.choice([1, 5, 12, 40])),
            "directory": tmp_path_factory.getbasetemp(),
            "shared": True,
        }
    )
    stack = open_stack(rows_of_weight(weight, row_format, sizes), placement)
    try:
        reader = other_end(stack)
        with torch.inference_mode():
            for _ in range(4):
                bagged, single = (random.integers(0, total, int(random.integers(0, 200))) for _ in range(2))
                found = resolved(stack, np.concatenate((bagged, single)))
                reader.begin(found)
                ends = np.sort(random.integers(0, bagged.size + 1, 3))
                offsets = torch.from_numpy(np.concatenate(([0], ends, [bagged.size])))
                index = torch.from_numpy(bagged)
                assert torch.equal(reader.pool(index, offsets), flat.pool(index, offsets))
                index = torch.from_numpy(single)
                assert torch.equal(reader.gather(index), flat.gather(index))
                found.release()
                changed = random.integers(0, total, int(random.integers(1, 20)))
                new = packed(random, changed.size, width, precision)
                last_wins(flat.weight.data, changed, new)
                stack.update(changed, new.view(torch.uint8).numpy().reshape(-1, row_format.bytes))
                release(stack, random)
        assert stack.settle(10.0)
    finally:
        stack.close()


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> TierStack:
    """64 rows of 4 numbers in shared memory, the number of the row in each."""
    weight = torch.arange(64.0).repeat_interleave(4).reshape(64, 4)
    row_format = RowFormat(4, "fp32")
    placement = TierSettings(shared=True)
    return open_stack(rows_of_weight(weight, row_format, {"t": 64}), placement)


def test_an_update_reaches_the_slab_only_after_batches_of_older_views(stack: TierStack) -> None:
    rows = np.array([3, 5])
    reader, index = other_end(stack), torch.from_numpy(rows)
    view = stack.views.enter()
    found = stack.resolve(view, rows)
    reader.begin(found)
    stack.update(rows[:1], np.full((1, 4), 0.5, np.float32).view(np.uint8))
    assert not stack.settle(0.05)
    assert reader.gather(index)[:, 0].tolist() == [3, 5]
    found.release()
    stack.views.leave(view)
    newer = resolved(stack, rows)
    reader.begin(newer)
    assert reader.gather(index)[:, 0].tolist() == [0.5, 5]
    newer.release()
    assert stack.settle(10.0)
    settled = resolved(stack, rows)
    assert not settled.at.size
    reader.begin(settled)
    assert reader.gather(index)[:, 0].tolist() == [0.5, 5]
    settled.release()
    stack.close()


def test_tiers_stay_open_until_the_last_batch_is_released(stack: TierStack) -> None:
    found = resolved(stack, np.array([1]))
    assert not stack.idle
    found.release()
    found.release()
    assert stack.idle
    stack.close()
    with pytest.raises(OSError, match="closed"):
        resolved(stack, np.array([1]))


def test_more_rows_than_were_resolved_cannot_be_read(stack: TierStack) -> None:
    reader = other_end(stack)
    found = resolved(stack, np.array([1, 2]))
    reader.begin(found)
    with pytest.raises(ValueError, match="row 3 of a batch is read, 2 were resolved"):
        reader.gather(torch.zeros(3, dtype=torch.int64))
    found.release()
    stack.close()
