from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.rows import OutdatedOrder, TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.drift import ROWS_AT_ONCE, Drift
from polyrec.models.tiers.updates.sample import Sample
from polyrec.models.tiers.updates.update import TableUpdate, apply_update
from polyrec.models.tiers.view import View
from tests.models.tiers.newest_view import newest_view
from tests.models.tiers.worlds import encoder_of, row_of, world

SIZES = {"a": 6000, "b": 300}


def ranks(view: View, table: str, ids: I64) -> torch.Tensor:
    assert view.encoder is not None
    base = 0 if table == "a" else SIZES["a"]
    return torch.from_numpy(base + view.encoder.vocabularies[table].rank_of_id[ids])


def looked_up(stack: TierStack, ids: I64, times: int) -> TieredRows:
    """Looks ids of table a up so often that every one of them is in the sample."""
    rows = TieredRows(stack)
    for _ in range(16 * times):
        with newest_view(rows) as view:
            rows.gather(ranks(view, "a", ids))
    return rows


def fast_hits(stack: TierStack) -> int:
    levels = stack.figures().levels
    return levels["device"].hits + levels["host"].hits


@pytest.mark.parametrize("at_once", [7, ROWS_AT_ONCE])
def test_rows_that_became_hot_move_to_fast_tiers_and_none_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Also if more rows move than are read at once."""
    monkeypatch.setattr("polyrec.models.tiers.updates.drift.ROWS_AT_ONCE", at_once)
    encoder = encoder_of(SIZES)
    stack = world(encoder, tmp_path)
    coldest = np.flatnonzero(encoder.vocabularies["a"].rank_of_id >= 5900)
    drift = Drift(stack, memory=0.1)
    rows = looked_up(stack, coldest, 50)
    assert fast_hits(stack) == 0
    moves = drift.reorder()
    assert (moves.before, moves.after) == (0.0, 1.0)
    assert moves.looked_up == 50 * coldest.size
    with newest_view(rows) as view:
        assert view.order == 1
        got = rows.gather(ranks(view, "a", coldest))
        np.testing.assert_array_equal(got.numpy(), row_of(0, coldest))
    assert fast_hits(stack) == coldest.size
    for _ in range(2):  # laid over the tiers, then written into them
        with newest_view(rows) as view:
            for number, (table, size) in enumerate(SIZES.items()):
                ids = np.arange(size)
                got = rows.gather(ranks(view, table, ids))
                np.testing.assert_array_equal(got.numpy(), row_of(number, ids))
        assert stack.settle(10.0)
    stack.close()


def test_a_new_order_reports_the_share_of_look_ups_in_fast_tiers_before_and_after(tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = world(encoder, tmp_path)
    rank_of_id = encoder.vocabularies["a"].rank_of_id
    # of each two rows that get hotter one is in host memory, the other on disk
    hot = np.flatnonzero((rank_of_id < 50) | (rank_of_id >= 5950))
    drift = Drift(stack, memory=0.1)
    looked_up(stack, hot, 20)
    fast = fast_hits(stack)
    moves = drift.reorder()
    assert (moves.before, moves.after) == (0.5, 1.0)
    assert moves.before * moves.looked_up == fast / 16
    stack.close()


def test_values_encode_to_the_new_ranks(tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    encoder.prepare()
    stack = world(encoder, tmp_path)
    coldest = np.flatnonzero(encoder.vocabularies["a"].rank_of_id[:-2] >= 5900)
    drift = Drift(stack, memory=0.1)
    looked_up(stack, coldest, 20)
    drift.reorder()
    after = stack.views.newest.encoder
    assert after is not None
    vocabulary = after.vocabularies["a"]
    assert vocabulary.encode("a", coldest.tolist()).max() < 1800
    assert vocabulary.encode("a", [None])[0] == vocabulary.rank_of_id[vocabulary.missing_id]
    assert vocabulary.encode("a", [10**9])[0] == vocabulary.oov_rank
    assert (np.diff(vocabulary.counts) <= 0).all()
    stack.close()


def test_nothing_moves_while_the_popular_stay_popular(tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = world(encoder, tmp_path)
    hottest = np.flatnonzero(encoder.vocabularies["a"].rank_of_id < 150)
    drift = Drift(stack, memory=0.1)
    looked_up(stack, hottest, 3)
    drift.reorder()
    order = stack.views.newest.order
    assert drift.reorder().rows == 0
    assert stack.views.newest.order == order
    stack.close()


def test_ranks_of_an_outdated_order_raise_an_error(tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = world(encoder, tmp_path)
    bound = TieredRows(stack)
    bound.gather(torch.arange(5))
    drift = Drift(stack, memory=0.1)
    looked_up(stack, np.flatnonzero(encoder.vocabularies["a"].rank_of_id >= 5900), 5)
    drift.reorder()
    with pytest.raises(OutdatedOrder):
        bound.gather(torch.arange(5))
    stack.close()


def test_no_batch_sees_a_wrong_row_or_half_an_update_under_load(tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = world(encoder, tmp_path, cache_bytes=24 * 4096)
    updated = np.random.default_rng(0).permutation(SIZES["a"])[:150]
    versions = np.full(SIZES["a"], -1)
    versions[updated] = 0
    stop = threading.Event()
    wrong: list[str] = []
    batches = [0, 0]

    def read(reader: int) -> None:
        random = np.random.default_rng(reader)
        rows = TieredRows(stack)
        while not stop.is_set() and not wrong:
            ids = random.permutation(SIZES["a"])[: int(random.integers(1, 100))]
            with newest_view(rows) as view:
                if random.random() < 0.5:
                    rows.prefetch(ranks(view, "a", ids).numpy())
                got = rows.gather(ranks(view, "a", ids)).numpy()
            if not (got[:, 1] == ids).all() or not (got[:, 0] == 0).all():
                wrong.append("a row of another id")
            of_update = got[versions[ids] == 0]
            if np.unique(of_update[:, 2:]).size > 1:
                wrong.append(f"half an update: versions {np.unique(of_update[:, 2:])}")
            if (got[versions[ids] < 0][:, 2:] != 0).any():
                wrong.append("a row that was never updated has new values")
            batches[reader] += 1

    threads = [threading.Thread(target=read, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    drift = Drift(stack, memory=0.1)
    random = np.random.default_rng(9)
    orders = 0
    try:
        for version in range(1, 13):
            apply_update(stack, {"a": TableUpdate(updated, row_of(0, updated, version))})
            hot = random.permutation(SIZES["a"])[:100]
            looked_up(stack, hot, 1)
            orders += drift.reorder().rows > 0
            if version % 3 == 0:
                assert stack.settle(10.0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert orders > 5
    assert min(batches) > 10
    assert stack.settle(10.0)
    rows = TieredRows(stack)
    with newest_view(rows) as view:
        final = rows.gather(ranks(view, "a", np.arange(SIZES["a"]))).numpy()
    expected = np.where(versions == 0, 12, 0)
    np.testing.assert_array_equal(final, row_of(0, np.arange(SIZES["a"]), expected))
    stack.close()


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("memory", [0.0, 1e12])
def test_the_past_weighs_no_more_than_it_was_counted(tmp_path: Path, memory: float, counted: bool) -> None:
    encoder = encoder_of(SIZES)
    if not counted:
        for vocabulary in encoder.vocabularies.values():
            vocabulary.counts[:] = 0
    stack = world(encoder, tmp_path)
    drift = Drift(stack, memory=memory, every=1)
    past = drift._known()
    for _ in range(3):
        looked_up(stack, np.arange(10), 1)  # 160 lookups
        drift.reorder()
    assert drift._known() == pytest.approx(past + 480 if memory else 160)
    stack.close()


def test_memory_of_drift_counts_unsampled_lookups_too(tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    coldest = np.flatnonzero(encoder.vocabularies["a"].rank_of_id >= 5900)
    memory = 10_000
    for every in (1, 8):
        stack = world(encoder, tmp_path)
        drift = Drift(stack, memory=memory, every=every)
        rows = TieredRows(stack)
        for _ in range(64):
            with newest_view(rows) as view:
                rows.gather(ranks(view, "a", coldest))
        drift.reorder()
        assert drift._known() == pytest.approx(memory + 64 * coldest.size, rel=0.01)
        stack.close()


def test_a_sample_keeps_the_latest_of_one_order() -> None:
    sample = Sample(size=5, every=2)
    for start in (0, 10, 20, 30):
        sample.note(0, np.arange(start, start + 3))
    taken, lookups = sample.take(0)
    assert sorted(taken.tolist()) == [11, 12, 30, 31, 32]
    assert lookups == 12
    assert sample.take(0)[0].size == 0
    sample.note(1, np.array([7]))
    sample.note(1, np.array([8]))
    assert sample.take(0)[0].size == 0
    sample.note(0, np.array([1]))
    sample.note(0, np.array([2]))
    assert sample.take(1)[0].tolist() == [8]


def test_nothing_is_sampled_before_a_sample_is_requested() -> None:
    sample = Sample()
    sample.note(0, np.arange(10))
    assert sample.take(0)[1] == 0
