"""Updates that outlive the tiers they were given to, against a plain dictionary of the last values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.tier_settings import TierSettings
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.update import TableUpdate, UpdateError, apply_update
from polyrec.models.tiers.updates.update_log import UpdateLog
from tests.models.tiers.redis_server import RedisServer
from tests.models.tiers.remote.readers import up
from tests.models.tiers.waiting import wait_until
from tests.models.tiers.worlds import FORM, encoder_of, flat_weight, row_of, world

SIZES = {"a": 300, "b": 40}
ENCODER = encoder_of(SIZES)
IDS = st.one_of(
    *(st.tuples(st.just(t), st.lists(st.integers(0, n - 1), max_size=30)) for t, n in SIZES.items())
)


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[Changes]:
    changes = Changes(tmp_path)
    yield changes
    changes.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


def update_of(table: str, ids: list[int], version: int) -> dict[str, TableUpdate]:
    named = np.array(ids, np.int64)
    return {table: TableUpdate(named, row_of(list(SIZES).index(table), named, version))}


def version_of_rows(stack: TierStack) -> dict[str, list[int]]:
    """Reads the value of every row of each table by id, and checks that it is that row."""
    rows, found, base = TieredRows(stack), {}, 0
    for i, (table, v) in enumerate(ENCODER.vocabularies.items()):
        got = rows.gather(torch.from_numpy(base + v.rank_of_id)).numpy()
        np.testing.assert_array_equal(got, row_of(i, np.arange(v.rows), got[:, 2]))
        found[table] = got[:, 2].astype(int).tolist()
        base += v.rows
    return found


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_updates=st.lists(st.tuples(IDS, st.booleans()), max_size=8))
def test_tiers_opened_again_have_the_last_values(
    given_updates: list[tuple[tuple[str, list[int]], bool]], tmp_path: Path
) -> None:
    changes = Changes(tmp_path)
    expected = {t: [0] * n for t, n in SIZES.items()}
    stacks = [world(ENCODER, tmp_path, changes=changes)]
    for version, ((table, ids), again) in enumerate(given_updates, 1):
        apply_update(stacks[-1], update_of(table, ids, version))
        for id in ids:
            expected[table][id] = version
        if again:
            stacks.append(world(ENCODER, tmp_path, changes=changes))
    for stack in stacks:
        assert version_of_rows(stack) == expected
        stack.close()
    last = world(ENCODER, tmp_path, changes=changes)
    assert version_of_rows(last) == expected
    # filled with them, not covered by them
    assert not last.views.newest.layers
    last.close()
    changed = {(table, id) for (table, ids), _ in given_updates for id in ids}
    assert changes.rows == len(changed)
    changes.close()


def test_an_update_that_comes_while_tiers_are_filled_is_not_lost(changes: Changes, tmp_path: Path) -> None:
    first = world(ENCODER, tmp_path, changes=changes)
    apply_update(first, update_of("a", list(range(300)), 1))
    stored = rows_of_weight(flat_weight(ENCODER), FORM, SIZES)
    calls = 0

    def read(start: int, count: int) -> Bytes:
        nonlocal calls
        calls += 1
        given = stored.source(start, count)
        # after this part is read, before it is written: each time some rows of both tables
        apply_update(first, update_of("a", list(range(calls, 300, 3)), 1 + calls))
        apply_update(first, update_of("b", [calls], 1 + calls))
        return given

    placement = {t: {"host": n // 3, "disk": n - n // 3} for t, n in SIZES.items()}
    second = open_stack(
        replace(stored, source=read),
        TierSettings.model_validate({"cuts": placement, "cache_bytes": 4096, "directory": tmp_path}),
        ENCODER,
        changes=changes,
    )
    assert calls > 2
    assert version_of_rows(second) == version_of_rows(first)
    apply_update(second, update_of("b", [0], 99))
    assert version_of_rows(first)["b"][0] == version_of_rows(second)["b"][0] == 99
    for stack in (first, second):
        assert stack.settle(20.0)
        assert not stack.views.newest.layers
    assert version_of_rows(second) == version_of_rows(first)
    first.close()
    second.close()


def test_a_store_that_is_filled_again_is_filled_with_the_last_values(
    changes: Changes, tmp_path: Path, server: RedisServer
) -> None:
    remote = {"url": server.url, "timeout_ms": 5000, "fill": True}
    everything = list(range(SIZES["a"]))

    def opened(encoder: Encoder) -> TierStack:
        return world(encoder, tmp_path, (0.1, 0.2, 0.3), remote=remote, changes=changes)

    first = opened(ENCODER)
    apply_update(first, update_of("a", everything, 5))
    assert first.settle(20.0)
    second = opened(ENCODER)
    for stack in (first, second):
        rows = TieredRows(stack)
        got = rows.gather(torch.from_numpy(ENCODER.vocabularies["a"].rank_of_id)).numpy()
        np.testing.assert_array_equal(got, row_of(0, np.arange(SIZES["a"]), 5))
        assert rows.take_fallbacks() == 0
    # the out-of-vocabulary row, which stands for rows that are lost, is the new one, too
    remote_tier = second.tiers.remote
    assert remote_tier is not None
    unknown = np.array([ENCODER.vocabularies["a"].oov_id])
    np.testing.assert_array_equal(remote_tier.fallback[0], row_of(0, unknown, 5).view(np.uint8)[0])
    first.close()
    second.close()


def test_an_update_that_cannot_be_stored_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    changes = Changes(tmp_path / "file")
    stack = world(ENCODER, tmp_path, changes=changes)
    with pytest.raises(UpdateError, match=r"cannot be kept in '.*file'"):
        apply_update(stack, update_of("a", [1, 2], 1))
    assert changes.rows == 0
    assert version_of_rows(stack)["a"] == [0] * 300
    stack.close()


def test_nothing_is_left_in_the_folder(changes: Changes, tmp_path: Path) -> None:
    stack = world(ENCODER, tmp_path, changes=changes)
    apply_update(stack, update_of("a", [1], 1))
    assert list(tmp_path.iterdir()) == []
    stack.close()


def test_an_update_that_a_store_never_got_is_served_after_a_restart(
    tmp_path: Path, server: RedisServer
) -> None:
    everything = list(range(SIZES["a"]))
    remote = {"url": server.url, "timeout_ms": 5000}

    def opened(changes: Changes, fill: bool) -> TierStack:
        settings = remote | {"fill": fill}
        return world(ENCODER, tmp_path, (0.1, 0.2, 0.3), remote=settings, changes=changes)

    changes = Changes(tmp_path, UpdateLog(tmp_path / "log"))
    stack = opened(changes, fill=True)
    server.send("CONFIG", "SET", "maxmemory", "1")
    apply_update(stack, update_of("a", everything, 5), "key")
    stack.close()
    changes.close(remove=False)
    server.send("CONFIG", "SET", "maxmemory", "0")
    changes = Changes(tmp_path, UpdateLog(tmp_path / "log"))
    for fill in (False, False):
        stack = opened(changes, fill)
        got = TieredRows(stack).gather(torch.from_numpy(ENCODER.vocabularies["a"].rank_of_id)).numpy()
        np.testing.assert_array_equal(got, row_of(0, np.arange(SIZES["a"]), 5))
        assert stack.settle(20.0)
        stack.close()
    changes.close()


@pytest.mark.parametrize("noticed", [True, False])
def test_updates_that_a_restarted_store_has_lost_are_served(
    noticed: bool, changes: Changes, tmp_path: Path, server: RedisServer
) -> None:
    """Redis comes back with its last snapshot, which has earlier values and looks complete."""
    remote = {"url": server.url, "timeout_ms": 5000, "fill": True}
    stack = world(ENCODER, tmp_path, (0.1, 0.2, 0.3), remote=remote, changes=changes)
    coldest = int(np.argmax(ENCODER.vocabularies["a"].rank_of_id))
    server.send("SAVE")
    apply_update(stack, update_of("a", list(range(SIZES["a"])), 5))
    assert stack.settle(20.0)
    assert set(version_of_rows(stack)["a"]) == {5}
    server.kill()
    if noticed:
        TieredRows(stack).gather(torch.arange(sum(SIZES.values())))
    server.start()
    assert stack.tiers.remote is not None
    if noticed:
        wait_until(lambda: up(stack), "the store was not found again")
        assert set(version_of_rows(stack)["a"]) == {5}
    wait_until(lambda: set(version_of_rows(stack)["a"]) == {5}, "earlier values are served")
    assert stack.settle(20.0)
    value = row_of(0, np.array([coldest]), 5).tobytes()
    assert server.send("GET", f"polyrec:v:a:{coldest:012d}") == value
    stack.close()


def test_a_store_that_was_only_away_keeps_the_values_that_others_wrote(
    changes: Changes, tmp_path: Path, server: RedisServer
) -> None:
    remote = {"url": server.url, "timeout_ms": 5000, "fill": True}
    stack = world(ENCODER, tmp_path, (0.1, 0.2, 0.3), remote=remote, changes=changes)
    apply_update(stack, update_of("a", list(range(SIZES["a"])), 5))
    assert stack.settle(20.0)
    tier = stack.tiers.remote
    assert tier is not None
    coldest = int(np.argmax(ENCODER.vocabularies["a"].rank_of_id))
    newer = row_of(0, np.array([coldest]), 6).view(np.uint8)
    tier.write(np.zeros(1, np.int64), np.array([coldest]), newer)
    tier._cluster.fail(tier._cluster.routes.servers[0], ConnectionResetError("a blip"))
    wait_until(lambda: up(stack), "the store was not found again")
    versions = version_of_rows(stack)["a"]
    assert versions[coldest] == 6
    stack.close()


def test_updates_that_wait_for_a_store_are_few_layers_and_lines(
    tmp_path: Path, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    remote = {"url": server.url, "timeout_ms": 5000, "fill": True}
    stack = world(ENCODER, tmp_path, (0.1, 0.2, 0.3), remote=remote)
    rank_of_id = ENCODER.vocabularies["a"].rank_of_id
    cold = np.flatnonzero(rank_of_id >= SIZES["a"] * 7 // 10)
    server.kill()
    expected, random = np.zeros(SIZES["a"]), np.random.default_rng(0)
    for version in range(1, 201):
        ids = random.choice(cold, 3, replace=False)
        apply_update(stack, update_of("a", ids.tolist(), version))
        expected[ids] = version
    assert not stack.settle(0.1)
    assert not stack.settle(0.1)
    assert len(stack.views.newest.layers) < 20
    assert sum("are not written yet" in line for line in caplog.messages) == 1
    server.start()
    wait_until(lambda: stack.settle(1.0), "the store does not get the updates")
    changed = np.flatnonzero(expected)
    got = TieredRows(stack).gather(torch.from_numpy(rank_of_id[changed])).numpy()
    np.testing.assert_array_equal(got, row_of(0, changed, expected[changed]))
    stack.close()
