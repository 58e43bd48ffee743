"""The remote tier against a real Redis Cluster of three masters: rows of all, and what happens when one is
away or a slot moves from one to another."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from redis.crc import key_slot

from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.remote.remote import RemoteTier
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.update import TableUpdate, apply_update
from tests.models.tiers.redis_cluster import MASTERS, RedisCluster
from tests.models.tiers.remote.readers import under_load, up
from tests.models.tiers.waiting import wait_until
from tests.models.tiers.worlds import check_remote_rows, encoder_of, row_of, world

SIZES = {"a": 3000, "table_b": 50}
FIRST_REMOTE = 1800
PREFIXES = (f"t{i}:" for i in itertools.count())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A cluster that keeps its keys between tests; each test has its own prefix."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.kill()


@pytest.fixture
def prefix() -> str:
    """Prefix of all keys, with the version that `world` gives."""
    return f"{next(PREFIXES)}v:"


@pytest.fixture
def opened(cluster: RedisCluster, tmp_path: Path, prefix: str) -> Iterator[Callable[..., TierStack]]:
    stacks = []

    def open_stack(encoder: Encoder, prefix: str = prefix) -> TierStack:
        remote = {"url": cluster.url, "timeout_ms": 5000, "fill": True, "prefix": prefix.removesuffix("v:")}
        stacks.append(world(encoder, tmp_path, (0.1, 0.2, 0.3), remote=remote))
        return stacks[-1]

    yield open_stack
    for stack in stacks:
        stack.close()


def slots_of(prefix: str, ids: I64, table: str = "a") -> I64:
    return np.array([key_slot(f"{prefix}{table}:{id:012d}".encode()) for id in ids.tolist()])


def test_rows_of_a_cluster_are_those_of_the_flat_table(
    cluster: RedisCluster, opened: Callable[..., TierStack], prefix: str
) -> None:
    encoder = encoder_of(SIZES)
    stack = opened(encoder)
    before = cluster.error_count("MOVED")
    check_remote_rows(stack, encoder)
    assert cluster.error_count("MOVED") == before
    assert set(cluster.owners(slots_of(prefix, np.arange(SIZES["a"]))).tolist()) == set(range(MASTERS))


def test_a_tagged_prefix_puts_all_rows_on_one_server(cluster: RedisCluster) -> None:
    fallback = np.full((2, 4), 9, np.uint8)
    tier = RemoteTier(cluster.url, ["a", "b"], fallback, timeout_s=5.0, prefix="{one}:")
    ids = np.arange(500)
    values = np.random.default_rng(0).integers(0, 256, (ids.size, 4), np.uint8)
    tier.write(ids % 2, ids, values)
    rows, found = tier.receive(tier.send(ids % 2, ids))
    np.testing.assert_array_equal(rows, values)
    assert found.all()
    slot = slots_of("{one}:", ids[:1])
    assert len(cluster.keys_of(int(cluster.owners(slot)[0]), int(slot[0]))) == ids.size
    tier.close()


def test_a_row_that_a_cluster_lacks_is_the_out_of_vocabulary_row(
    cluster: RedisCluster, opened: Callable[..., TierStack], prefix: str
) -> None:
    encoder = encoder_of(SIZES)
    stack = opened(encoder)
    v = encoder.vocabularies["a"]
    remote = np.flatnonzero(v.rank_of_id >= FIRST_REMOTE)
    owners = cluster.owners(slots_of(prefix, remote[:9]))
    for place, (id, owner) in enumerate(zip(remote[:9].tolist(), owners.tolist(), strict=True)):
        key = f"{prefix}a:{id:012d}"
        assert cluster.send(owner, "DEL", key) == 1
        if place == 0:
            cluster.send(owner, "LPUSH", key, "not a row")
        if place == 1:
            cluster.send(owner, "SET", key, "short")
    rows = TieredRows(stack)
    got = rows.gather(torch.from_numpy(v.rank_of_id[remote]))
    expected = row_of(0, remote)
    expected[:9] = row_of(0, np.full(9, v.oov_id))
    np.testing.assert_array_equal(got.numpy(), expected)
    assert rows.take_fallbacks() == 9


def test_a_lost_server_affects_only_its_rows_and_recovers(
    cluster: RedisCluster, opened: Callable[..., TierStack], prefix: str
) -> None:
    encoder = encoder_of(SIZES)
    stack = opened(encoder)
    v = encoder.vocabularies["a"]
    # the one that the URL names, at that
    lost = 0
    its = (cluster.owners(slots_of(prefix, np.arange(v.rows))) == lost) & (v.rank_of_id >= FIRST_REMOTE)
    clean, degraded = threading.Event(), threading.Event()

    def seen(ids: I64, version: I64, fallen: int) -> str | None:
        (degraded if fallen else clean).set()
        if (version[~its[ids]] == -1).any():
            return "a row of another server was lost"
        return None if (version == -1).sum() == fallen else "quality was degraded and not said"

    with under_load(stack, encoder, seen):
        for _ in range(2):
            clean.clear()
            assert clean.wait(30), "no batch was answered in full"
            cluster.nodes[lost].kill()
            degraded.clear()
            assert degraded.wait(30), "no batch missed the server"
            wait_until(lambda: not up(stack), "nobody noticed")
            cluster.nodes[lost].start()
            wait_until(lambda: cluster.knows_all(lost), "it did not join again")
            wait_until(lambda: up(stack), "the server was not found again")
            # it came back empty: its rows are written anew, as an operator would
            ids = np.flatnonzero(its)
            remote = stack.tiers.remote
            assert remote is not None
            remote.write(np.zeros_like(ids), ids, row_of(0, ids).view(np.uint8))
    rows = TieredRows(stack)
    got = rows.gather(torch.from_numpy(v.rank_of_id)).numpy()
    np.testing.assert_array_equal(got, row_of(0, np.arange(v.rows)))
    assert rows.take_fallbacks() == 0


def test_rows_are_right_while_their_slot_moves_to_another_server(
    cluster: RedisCluster, opened: Callable[..., TierStack]
) -> None:
    encoder = encoder_of(SIZES)
    # one slot has them all, so that some go before and some after
    prefix = f"{{{next(PREFIXES)}}}:v:"
    stack = opened(encoder, prefix)
    v = encoder.vocabularies["a"]
    moving = np.flatnonzero(v.rank_of_id >= FIRST_REMOTE)
    slot = int(slots_of(prefix, moving[:1])[0])
    source = int(cluster.owners(np.array([slot]))[0])
    target = (source + 1) % MASTERS
    read = threading.Event()

    def seen(ids: I64, version: I64, fallen: int) -> str | None:
        read.set()
        return "a row was lost" if fallen else None

    def wait_for_readers() -> None:
        for _ in range(4):
            read.clear()
            assert read.wait(30), "nobody reads"

    def migrate(keys: list[str]) -> None:
        where = ("127.0.0.1", str(cluster.nodes[target].port), "", "0", "9000")
        assert cluster.send(source, "MIGRATE", *where, "KEYS", *keys) == b"OK"

    with under_load(stack, encoder, seen):
        cluster.send(target, "CLUSTER", "SETSLOT", str(slot), "IMPORTING", cluster.name(source))
        cluster.send(source, "CLUSTER", "SETSLOT", str(slot), "MIGRATING", cluster.name(target))
        here = cluster.keys_of(source, slot)
        assert len(here) > moving.size
        migrate(here[::2])
        before = cluster.error_count("ASK")
        wait_for_readers()
        assert cluster.error_count("ASK") > before
        # new values find both: those still here and those gone ahead
        apply_update(stack, {"a": TableUpdate(moving, row_of(0, moving, 4))})
        assert stack.settle(30.0)
        wait_for_readers()
        assert len(cluster.keys_of(source, slot)) == len(here[1::2])
        migrate(here[1::2])
        for node in (target, source, *(i for i in range(MASTERS) if i not in (source, target))):
            cluster.send(node, "CLUSTER", "SETSLOT", str(slot), "NODE", cluster.name(target))
        wait_for_readers()
    assert cluster.owners(np.array([slot]))[0] == target
    rows = TieredRows(stack)

    def goes_there_at_once() -> bool:
        moved = cluster.error_count("MOVED")
        got = rows.gather(torch.from_numpy(v.rank_of_id[moving])).numpy()
        np.testing.assert_array_equal(got, row_of(0, moving, 4))
        return cluster.error_count("MOVED") == moved

    wait_until(goes_there_at_once, "the map was not asked for anew")
    assert rows.take_fallbacks() == 0


def test_a_hanging_server_does_not_affect_other_rows(cluster: RedisCluster, prefix: str) -> None:
    fallback = np.full((1, 4), 9, np.uint8)
    tier = RemoteTier(cluster.url, ["a"], fallback, timeout_s=2.0, prefix=prefix)
    ids = np.arange(300)
    zeros = np.zeros_like(ids)
    values = ids.astype("<u4").view(np.uint8).reshape(-1, 4)
    tier.write(zeros, ids, values)
    owner = cluster.owners(slots_of(prefix, ids))
    cluster.nodes[0].signal(signal.SIGSTOP)
    try:
        rows, found = tier.receive(tier.send(zeros, ids))
    finally:
        cluster.nodes[0].signal(signal.SIGCONT)
    np.testing.assert_array_equal(found, owner != 0)
    np.testing.assert_array_equal(rows, np.where(found[:, None], values, fallback))
    assert (owner == 0).any()
    wait_until(lambda: tier.up, "the server was not found again")
    rows, found = tier.receive(tier.send(zeros, ids))
    assert found.all()
    np.testing.assert_array_equal(rows, values)
    tier.close()


def test_a_cluster_that_is_down_at_the_start_is_found_later(cluster: RedisCluster, prefix: str) -> None:
    ids = np.arange(100)
    zeros = np.zeros_like(ids)
    cluster.nodes[0].kill()
    tier = RemoteTier(cluster.url, ["a"], np.full((1, 4), 9, np.uint8), timeout_s=5.0, prefix=prefix)
    assert not tier.up
    assert not tier.receive(tier.send(zeros, ids))[1].any()
    with pytest.raises(OSError, match="does not answer"):
        tier.write(zeros, ids, np.ones((100, 4), np.uint8))
    cluster.nodes[0].start()
    wait_until(lambda: tier.up and cluster.knows_all(0), "the cluster was not found")
    tier.write(zeros, ids, np.ones((100, 4), np.uint8))
    rows, found = tier.receive(tier.send(zeros, ids))
    assert found.all()
    assert (rows == 1).all()
    tier.close()


def test_a_replica_that_takes_over_is_found(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path)
    try:
        replica = cluster.replicate(2)
        tier = RemoteTier(cluster.url, ["a"], np.full((1, 4), 9, np.uint8), timeout_s=5.0)
        ids = np.arange(300)
        zeros = np.zeros_like(ids)
        values = ids.astype("<u4").view(np.uint8).reshape(-1, 4)
        its = cluster.owners(slots_of("polyrec:", ids)) == 2
        tier.write(zeros, ids, values)
        wait_until(lambda: cluster.caught_up(2, replica), "the replica lags behind")
        cluster.nodes[2].kill()
        _, found = tier.receive(tier.send(zeros, ids))
        np.testing.assert_array_equal(found, ~its)
        assert cluster.send(replica, "CLUSTER", "FAILOVER", "TAKEOVER") == b"OK"
        wait_until(lambda: tier.up, "who took over was not found")
        rows, found = tier.receive(tier.send(zeros, ids))
        assert found.all()
        np.testing.assert_array_equal(rows, values)
        tier.write(zeros, ids, values[::-1].copy())
        tier.close()
    finally:
        cluster.kill()
