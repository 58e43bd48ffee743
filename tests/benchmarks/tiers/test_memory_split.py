from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.tiers.memory_split import split_memory
from polyrec.models.embeddings.cuts import stored_within
from polyrec.models.tiers.layout import HOST
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.tier_settings import TierSettings
from tests.models.tiers.worlds import FORM, encoder_of, flat_weight

SIZES = {"a": 30_000, "b": 9000, "c": 40}


def opened(tmp_path: Path, budget: int) -> TierStack:
    encoder = encoder_of(SIZES)
    share = split_memory(encoder.vocabularies, FORM.bytes, budget)
    placement = TierSettings(cuts=share.cuts, cache_bytes=share.cache_bytes, directory=tmp_path)
    return open_stack(FORM, SIZES, rows_of_weight(flat_weight(encoder), FORM), placement, encoder)


@pytest.mark.parametrize("part", [0.1, 0.25, 0.6])
def test_rows_cache_and_books_are_within_the_budget_and_use_it(tmp_path: Path, part: float) -> None:
    budget = int(sum(SIZES.values()) * FORM.bytes * part)
    stack = opened(tmp_path, budget)
    tiers = stack.tiers
    assert tiers.disk is not None
    assert 0.95 * budget - 8192 < tiers.host_bytes <= budget
    assert tiers.disk.row_cache.slots > 0
    stack.close()


def test_a_budget_for_every_row_needs_no_file() -> None:
    encoder = encoder_of(SIZES)
    share = split_memory(encoder.vocabularies, 32, 32 * 10**6)
    assert all(c.disk == 0 and c.host == SIZES[t] for t, c in share.cuts.items())


def test_device_rows_are_not_in_host_memory() -> None:
    encoder = encoder_of(SIZES)
    share = split_memory(encoder.vocabularies, 32, 32 * 2000, 32 * 1000)
    assert {t: c.device for t, c in share.cuts.items()} == {
        t: stored_within(encoder.vocabularies, 1000).get(t, 0) for t in SIZES
    }
    assert sum(c.host for c in share.cuts.values()) <= 2000 - 4096 // 32


def test_the_rows_next_in_popularity_are_in_memory_from_the_start(tmp_path: Path) -> None:
    budget = int(sum(SIZES.values()) * FORM.bytes * 0.25)
    stack = opened(tmp_path, budget)
    assert stack.tiers.disk is not None
    held = stack.tiers.layout.rows[HOST]
    upto = stored_within(encoder_of(SIZES).vocabularies, held + stack.tiers.disk.row_cache.slots)
    rows = TieredRows(stack)
    wanted = torch.from_numpy(
        np.concatenate([stack.tiers.layout.base[t] + np.arange(n) for t, n in upto.items()])
    )
    got = rows.gather(wanted)
    assert torch.equal(got.view(torch.float32), flat_weight(encoder_of(SIZES))[wanted])
    levels = stack.figures().levels
    in_memory = levels["host"].hits + levels["cache"].hits
    assert in_memory > 0.97 * wanted.numel()  # a full set has no place for some
    stack.close()


def test_a_row_used_twice_by_a_batch_is_missed_once_and_then_cached(tmp_path: Path) -> None:
    stack = opened(tmp_path, int(sum(SIZES.values()) * FORM.bytes * 0.1))
    rows = TieredRows(stack)
    last = torch.tensor([SIZES["a"] - 1] * 5)
    found = []
    for _ in range(2):
        rows.gather(last)
        levels = stack.figures().levels
        found.append((levels["host"].hits + levels["cache"].hits, levels["host"].lookups))
    assert found == [(4, 5), (9, 10)]
    stack.close()
