"""Rows that are read ahead: which ones are missing, exactly, and that nothing outdated is gathered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.layout import DISK, REMOTE
from polyrec.models.tiers.near.near_rows import NearRows
from polyrec.models.tiers.remote.fetched import FetchedRows
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.update import TableUpdate, apply_update
from polyrec.models.tiers.view import View
from tests.models.random_batches import random_batch
from tests.models.tiers.redis_server import RedisServer
from tests.models.tiers.worlds import check_resolved, encoder_of, flat_weight, row_of, world

SIZES = {"a": 3000, "b": 500}
ENCODER = encoder_of(SIZES)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("store"))
    yield server
    server.kill()


def with_store(
    server: RedisServer, directory: Path, shares: tuple[float, ...] = (0.0, 0.2, 0.5)
) -> TierStack:
    remote = {"url": server.url, "timeout_ms": 30_000, "fill": True}
    return world(ENCODER, directory, shares, remote=remote)


def counted(stack: TierStack, rows: I64) -> tuple[int, int]:
    """Pages to be read and remote rows, one row at a time."""
    disk = stack.tiers.disk
    assert disk is not None
    pages, remote = set(), set()
    for row in rows.tolist():
        where = stack.tiers.locate(np.array([row]))
        if where.tier[0] == REMOTE:
            remote.add(row)
        elif where.tier[0] == DISK:
            page = where.local // stack.tiers.slab.rows_a_page
            if disk.row_cache.find(where.local)[0] < 0 and disk.staged.find(page)[0] < 0:
                pages.add(int(page[0]))
    return len(pages), len(remote)


def test_without_a_disk_only_rows_of_the_store_are_missing(server: RedisServer, tmp_path: Path) -> None:
    stack, random = with_store(server, tmp_path, (0.0, 0.5, 0.0)), np.random.default_rng(0)
    assert stack.tiers.disk is None
    for count in (0, 1, 2, 40, 4000):
        rows = random.integers(0, sum(SIZES.values()), count)
        missing = stack.ahead.missing(rows)
        remote = [i for i, row in enumerate(rows) if stack.tiers.locate(np.array([row])).tier[0] == REMOTE]
        assert missing.remote.tolist() == remote
        pages, distinct = missing.distinct(None)
        assert distinct.tolist() == sorted(set(rows[remote].tolist()))
        assert missing.nothing == (not remote)
        assert missing.pages_to_wait_for == pages.size == 0
    stack.close()


def fetch(stack: TierStack, view: View, rows: I64) -> FetchedRows:
    sent = stack.ahead.send(view, rows)
    assert sent is not None
    return stack.ahead.receive(sent)


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_misses_are_those_of_a_row_by_row_count_and_of_the_batch(
    server: RedisServer, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random = np.random.default_rng(seed)
    stack = with_store(server, tmp_path_factory.getbasetemp(), (0.0, float(random.choice([0, 0.2])), 0.5))
    flat, rows = flat_weight(ENCODER), TieredRows(stack)
    try:
        for _ in range(6):
            index = random.integers(0, sum(SIZES.values()), int(random.integers(0, 60)))
            missing = stack.ahead.missing(index)
            owner = random.integers(0, 4, index.size)
            pages, remote = missing.counts(owner, 4)
            for one in range(4):
                assert (pages[one], remote[one]) == counted(stack, index[owner == one])
            assert missing.nothing == (not pages.any() and not remote.any())
            assert (missing.pages_to_wait_for, missing.distinct(None)[1].size) == counted(stack, index)
            for every, own in zip(
                missing.distinct(None), missing.distinct(np.ones(index.size, bool)), strict=True
            ):
                np.testing.assert_array_equal(every, own)
            if random.random() < 0.5:
                owns = random.random(index.size) < 0.5
                own_pages, own_rows = missing.distinct(owns)
                assert own_rows.size == counted(stack, index[owns])[1]
                stack.ahead.wait(stack.ahead.read(own_pages))
                # earlier reads ahead may have left no room for all
                assert counted(stack, index[owns])[0] <= own_pages.size
            before = stack.figures()
            expected, _ = counted(stack, index)
            assert torch.equal(rows.gather(torch.from_numpy(index)), flat[torch.from_numpy(index)])
            read = stack.figures().levels["disk"].bytes - before.levels["disk"].bytes
            assert read == expected * stack.tiers.slab.page_bytes
    finally:
        stack.close()


def test_fetched_rows_are_gathered_without_the_store(server: RedisServer, tmp_path: Path) -> None:
    stack = with_store(server, tmp_path)
    index = np.arange(2000, 3000)
    view = stack.views.enter()
    fetched = fetch(stack, view, np.unique(stack.ahead.missing(index).remote_rows))
    assert fetched is not None
    stack.views.leave(view)
    server.send("FLUSHALL")
    rows = TieredRows(stack)
    with rows.within(replace(view, staged=fetched)):
        got = rows.gather(torch.from_numpy(index))
    assert torch.equal(got, flat_weight(ENCODER)[index])
    assert rows.take_fallbacks() == 0
    stack.close()


@pytest.mark.parametrize("host", [0.9, 0.0])
def test_batches_with_fetched_rows_are_gathered_like_any(
    host: float, server: RedisServer, tmp_path: Path
) -> None:
    """By the short way, for batches whose other rows are in memory."""
    random = np.random.default_rng(5)
    stack = with_store(server, tmp_path, (0.0, host, 0.0))
    stack.sample.every = 1
    rows, fused = TieredRows(stack), FusedRows(ENCODER.schema, SIZES)
    near, gathered = NearRows(stack.tiers.layout, stack.tiers.prefix, fused), 0
    for step in range(30):
        batch = random_batch(random, ENCODER.schema, SIZES, int(random.integers(3, 30)))
        index = fused.lookups(batch).singles
        view = stack.views.newest
        missing = np.unique(stack.ahead.missing(index).remote_rows)
        if missing.size < 2:
            continue
        fetched = fetch(stack, view, missing)
        if step % 3 == 1:
            fetched = replace(fetched, lost=random.random(missing.size) < 0.3)
        if step % 5 == 4:
            # not all of them
            fetched = replace(fetched, rows=missing[1:], values=fetched.values[1:], lost=fetched.lost[1:])
        stack.sample.take(0)
        before = stack.figures()
        # known from the look-up in half of the steps
        of_batch = replace(view, staged=fetched, others=near.others(batch) if step % 2 else None)
        with rows.within(of_batch):
            found = rows.gather_near(near, batch, np.empty(index.size, np.int64))
            if found is None:
                assert step % 5 == 4 or not host
                continue
            gathered += 1
            own, own_lost, own_figures = found.copy(), rows.take_fallbacks(), stack.figures()
            sampled, _ = stack.sample.take(0)
            np.testing.assert_array_equal(sampled, index)
            np.testing.assert_array_equal(own, rows.gather(torch.from_numpy(index)).numpy())
        assert own_lost == rows.take_fallbacks()
        figures = stack.figures()
        assert own_figures.fallbacks - before.fallbacks == figures.fallbacks - own_figures.fallbacks
        for table, tiers in figures.tables.items():
            for tier, after in tiers.items():
                half = np.add(before.tables[table][tier], after) / 2
                np.testing.assert_array_equal(own_figures.tables[table][tier], half)
        check_resolved(stack, of_batch, near, batch, index)
    assert gathered > 10 or not host
    stack.close()


def test_rows_that_the_store_lacks_are_lost_and_not_asked_for_again(
    server: RedisServer, tmp_path: Path
) -> None:
    """Else the lane, and hot queries behind it, would wait for the store in each batch with cold ones."""
    stack = with_store(server, tmp_path)
    index = np.arange(2900, 3000)
    flat = flat_weight(ENCODER)[index]
    server.send("FLUSHALL")
    view = stack.views.newest
    fetched = fetch(stack, view, index)
    assert fetched.lost.all()
    # if the batch asked, it would find them
    with_store(server, tmp_path).close()
    rows = TieredRows(stack)
    with rows.within(replace(view, staged=fetched)):
        unknown = rows.gather(torch.from_numpy(index))
    assert not torch.equal(unknown, flat)
    assert torch.equal(unknown, unknown[:1].expand(100, -1))
    assert rows.take_fallbacks() == 100
    remote = stack.figures().levels["remote"]
    assert (remote.lookups, remote.hits) == (100, 0)
    assert torch.equal(rows.gather(torch.from_numpy(index)), flat)
    stack.close()


@pytest.mark.parametrize("before", [True, False])
def test_an_update_beside_a_fetch_is_gathered_by_the_batch_and_reaches_the_store(
    server: RedisServer, tmp_path: Path, before: bool
) -> None:
    stack = with_store(server, tmp_path)
    everything = np.arange(SIZES["a"])
    new = {"a": TableUpdate(everything, row_of(0, everything, 7))}
    if before:
        apply_update(stack, new)
    held = stack.views.enter()
    fetched = fetch(stack, held, np.arange(2500, 3000))
    if not before:
        apply_update(stack, new)
        assert not stack.settle(0.0)
    else:
        # its layer is in the view that is held, so it may be written and dropped meanwhile
        assert stack.settle(30)
    view = stack.views.enter()
    stack.views.leave(held)
    rows = TieredRows(stack)
    with rows.within(replace(view, staged=fetched)):
        got = rows.gather(torch.arange(3000))
    expected = row_of(0, everything, 7)[np.argsort(ENCODER.vocabularies["a"].rank_of_id)]
    np.testing.assert_array_equal(got.numpy(), expected)
    stack.views.leave(view)
    assert stack.settle(30)
    np.testing.assert_array_equal(rows.gather(torch.arange(3000)).numpy(), expected)
    stack.close()
