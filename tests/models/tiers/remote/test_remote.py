"""The remote tier against a real Redis: rows by one request, and what happens when it goes away."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.remote.fetched import store_clock
from polyrec.models.tiers.remote.remote import RemoteTier
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.drift import Drift
from polyrec.models.tiers.updates.update import TableUpdate, apply_update
from tests.models.tiers.newest_view import newest_view
from tests.models.tiers.redis_server import RedisServer
from tests.models.tiers.remote.readers import under_load, up
from tests.models.tiers.waiting import wait_until
from tests.models.tiers.worlds import FORM, check_remote_rows, encoder_of, flat_weight, row_of, world

SIZES = {"a": 3000, "table_b": 50}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


def with_store(encoder: Encoder, directory: Path, url: str, fill: bool = True) -> TierStack:
    remote = {"url": url, "timeout_ms": 5000, "fill": fill}
    return world(encoder, directory, (0.1, 0.2, 0.3), remote=remote)


def test_remote_rows_are_those_of_the_flat_table(server: RedisServer, tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = with_store(encoder, tmp_path, server.url)
    check_remote_rows(stack, encoder)
    stack.close()


def test_keys_tell_people_the_table_and_the_id(server: RedisServer, tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = with_store(encoder, tmp_path, server.url)
    coldest = int(np.argmax(encoder.vocabularies["a"].rank_of_id))
    assert server.send("STRLEN", f"polyrec:v:a:{coldest:012d}") == FORM.bytes
    stack.close()


def test_a_row_that_the_store_lacks_is_the_out_of_vocabulary_row(server: RedisServer, tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = with_store(encoder, tmp_path, server.url)
    v = encoder.vocabularies["a"]
    remote = np.flatnonzero(v.rank_of_id >= 1800)
    gone = remote[:10]
    for id in gone[:9].tolist():
        assert server.send("DEL", f"polyrec:v:a:{id:012d}") == 1
    server.send("SET", f"polyrec:v:a:{gone[9]:012d}", "another model's")
    rows = TieredRows(stack)
    got = rows.gather(torch.from_numpy(v.rank_of_id[remote]))
    expected = row_of(0, remote)
    expected[:10] = row_of(0, np.full(10, v.oov_id))
    np.testing.assert_array_equal(got.numpy(), expected)
    assert rows.take_fallbacks() == 10
    figures = stack.figures()
    assert figures.fallbacks == 10
    assert figures.levels["remote"].lookups - figures.levels["remote"].hits == 10
    stack.close()


def test_the_log_tells_that_a_store_came_back_empty(
    server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = encoder_of(SIZES)
    stack = with_store(encoder, tmp_path, server.url)
    rows = TieredRows(stack)
    every = torch.arange(sum(SIZES.values()))
    rows.gather(every)
    assert not caplog.messages
    server.send("FLUSHALL")
    for _ in range(2):
        rows.gather(every)
    (said,) = caplog.messages
    lost = rows.take_fallbacks() // 2
    assert said.endswith(f"lacks {lost} of {lost} rows: reload a plan with `fill: true` to write them")
    stack.close()


def test_the_log_names_a_store_that_cannot_be_reached_once(
    server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stack = with_store(encoder_of(SIZES), tmp_path, server.url)
    server.kill()
    TieredRows(stack).gather(torch.arange(sum(SIZES.values())))
    assert caplog.messages[0].startswith(f"the remote store at {server.url} failed: cannot be reached: ")
    assert caplog.messages[0].count(server.url) == 1
    stack.close()


def test_the_log_names_a_series_of_failures_once_and_when_it_is_over(
    server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is slower than its timeout fails and answers several times a second."""
    stack = with_store(encoder_of(SIZES), tmp_path, server.url)
    rows, everything = TieredRows(stack), torch.arange(sum(SIZES.values()))
    monkeypatch.setattr("polyrec.models.tiers.remote.server.LACKS_EVERY_S", float("inf"))
    monkeypatch.setattr("polyrec.models.tiers.remote.server.CALM_S", float("inf"))
    for _ in range(3):
        server.kill()
        rows.gather(everything)
        server.start()
        wait_until(lambda: up(stack), "the store is not seen to be back")
        rows.gather(everything)
    monkeypatch.setattr("polyrec.models.tiers.remote.server.CALM_S", 0.0)
    rows.gather(everything)
    rows.gather(everything)
    first, last = caplog.messages
    assert "failed: cannot be reached: " in first
    assert re.fullmatch(f"the remote store at {server.url} answers again; it failed for [0-9]+ s", last)
    stack.close()


def test_updates_and_new_orders_reach_the_store(server: RedisServer, tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = with_store(encoder, tmp_path, server.url)
    everything = np.arange(SIZES["a"])
    apply_update(stack, {"a": TableUpdate(everything, row_of(0, everything, 3))})
    cold = np.flatnonzero(encoder.vocabularies["a"].rank_of_id >= 2900)
    rows = TieredRows(stack)
    drift = Drift(stack, memory=0.1)
    for _ in range(64):
        with newest_view(rows) as view:
            assert view.encoder is not None
            rows.gather(torch.from_numpy(view.encoder.vocabularies["a"].rank_of_id[cold]))
    moves = drift.reorder()
    assert (moves.before, moves.after) == (0.0, 1.0)
    for _ in range(2):
        with newest_view(rows) as view:
            assert view.encoder is not None
            got = rows.gather(torch.from_numpy(view.encoder.vocabularies["a"].rank_of_id))
            np.testing.assert_array_equal(got.numpy(), row_of(0, everything, 3))
        assert stack.settle(10.0)
    assert rows.take_fallbacks() == 0
    stack.close()


def test_a_store_killed_and_restarted_under_load_costs_quality_never_an_answer(
    server: RedisServer, tmp_path: Path
) -> None:
    encoder = encoder_of(SIZES)
    stack = with_store(encoder, tmp_path, server.url)
    v = encoder.vocabularies["a"]
    clean, degraded = threading.Event(), threading.Event()

    def seen(ids: I64, version: I64, fallen: int) -> str | None:
        (degraded if fallen else clean).set()
        lost = version == -1
        if (lost & (v.rank_of_id[ids] < 1800)).any():
            return "a row that is not in the store was lost"
        return "quality was degraded and not said" if lost.sum() > fallen else None

    with under_load(stack, encoder, seen):
        for _ in range(3):
            clean.clear()
            assert clean.wait(20), "no batch was answered in full"
            degraded.clear()
            server.kill()
            assert degraded.wait(20), "no batch missed the store"
            # a batch from before it was filled again may be late, and have lost rows, too
            wait_until(lambda: not up(stack), "nobody noticed")
            server.start()
            wait_until(lambda: up(stack), "the store was not found again")
            # it came back empty: its rows are written anew, as an operator would
            refill(stack, encoder)
    rows = TieredRows(stack)
    everything = torch.arange(sum(SIZES.values()))
    assert torch.equal(rows.gather(everything), flat_weight(encoder))
    assert rows.take_fallbacks() == 0
    stack.close()


def refill(stack: TierStack, encoder: Encoder) -> None:
    remote = stack.tiers.remote
    assert remote is not None
    for i, v in enumerate(encoder.vocabularies.values()):
        ids = np.arange(v.rows)
        values = row_of(i, ids).view(np.uint8)
        remote.write(np.full(v.rows, i), ids, values)


def test_updates_wait_for_a_store_that_is_down(server: RedisServer, tmp_path: Path) -> None:
    encoder = encoder_of(SIZES)
    stack = with_store(encoder, tmp_path, server.url)
    v = encoder.vocabularies["a"]
    remote = np.flatnonzero(v.rank_of_id >= 1800)
    server.kill()
    apply_update(stack, {"a": TableUpdate(remote, row_of(0, remote, 5))})
    assert not stack.settle(0.1)
    rows = TieredRows(stack)
    got = rows.gather(torch.from_numpy(v.rank_of_id[remote]))
    np.testing.assert_array_equal(got.numpy(), row_of(0, remote, 5))
    server.start()
    wait_until(lambda: up(stack), "the store was not found again")
    assert stack.settle(10.0)
    got = rows.gather(torch.from_numpy(v.rank_of_id[remote]))
    np.testing.assert_array_equal(got.numpy(), row_of(0, remote, 5))
    stack.close()


def test_a_store_that_does_not_answer_in_time_is_not_waited_for(server: RedisServer) -> None:
    fallback = np.full((1, 4), 9, np.uint8)
    tier = RemoteTier(server.url, ["a"], fallback, timeout_s=0.05)
    server.send("CLIENT", "PAUSE", "600", "ALL")
    zeros = np.zeros(3, np.int64)
    rows, found = tier.receive(tier.send(zeros, np.arange(3)))
    assert not found.any()
    np.testing.assert_array_equal(rows, np.repeat(fallback, 3, axis=0))
    assert tier.failures == 1
    tier.close()


def test_replies_that_have_arrived_are_read_after_the_deadline(server: RedisServer) -> None:
    tier = RemoteTier(server.url, ["a"], np.zeros((1, 4), np.uint8), timeout_s=5.0)
    ids, zeros = np.arange(3), np.zeros(3, np.int64)
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    tier.write(zeros, ids, values)
    batch = tier.send(zeros, ids)
    assert batch.requests[0].connection.can_read(20.0)
    rows, found = tier.receive(replace(batch, until_s=store_clock() - 1))
    assert found.all()
    np.testing.assert_array_equal(rows, values)
    tier.close()


def test_requests_larger_than_the_socket_buffer_are_sent_and_read(server: RedisServer) -> None:
    tier = RemoteTier(server.url, ["a"], np.zeros((1, 64), np.uint8), timeout_s=60.0)
    ids = np.arange(100_000)
    zeros = np.zeros_like(ids)
    values = np.random.default_rng(0).integers(0, 256, (ids.size, 64), np.uint8)
    tier.write(zeros, ids, values)
    rows, found = tier.receive(tier.send(zeros, ids))
    assert found.all()
    np.testing.assert_array_equal(rows, values)
    tier.close()


def test_connections_that_the_server_closed_while_idle_cost_no_row(server: RedisServer) -> None:
    tier = RemoteTier(server.url, ["a"], np.zeros((1, 4), np.uint8), timeout_s=5.0)
    ids, zeros = np.arange(3), np.zeros(3, np.int64)
    tier.write(zeros, ids, np.ones((3, 4), np.uint8))
    for _ in range(2):
        assert tier.receive(tier.send(zeros, ids))[1].all()
        assert server.send("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") == 1
    assert tier.failures == 0
    tier.close()


def test_a_store_is_reached_by_a_unix_socket_and_another_database(tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    server = RedisServer(tmp_path, "--unixsocket", str(socket))
    ids, zeros = np.arange(3), np.zeros(3, np.int64)
    try:
        for url in (f"unix://{socket}", f"{server.url}/3"):
            tier = RemoteTier(url, ["a"], np.zeros((1, 4), np.uint8), timeout_s=5.0)
            assert not tier.receive(tier.send(zeros, ids))[1].any()
            tier.write(zeros, ids, np.ones((3, 4), np.uint8))
            assert tier.receive(tier.send(zeros, ids))[1].all()
            tier.close()
    finally:
        server.kill()


def test_a_store_that_cannot_be_filled_is_reported(server: RedisServer, tmp_path: Path) -> None:
    server.kill()
    with pytest.raises(RuntimeUnavailable, match=f"cannot be filled: .*127.0.0.1:{server.port}"):
        with_store(encoder_of(SIZES), tmp_path, server.url)
    server.start()


def test_reserved_rows_are_a_tiers_own_and_their_absence_is_ordinary(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Their first vector is overlaid until it is written."""
    reserved = {1: np.array([4, 7])}
    first, second = (
        RemoteTier(server.url, ["a", "b"], np.zeros((2, 4), np.uint8), timeout_s=5.0, reserved=reserved)
        for _ in range(2)
    )
    tables, ids = np.array([1, 0, 1, 1]), np.array([7, 7, 5, 4])
    first.write(tables[1:3], ids[1:3], np.full((2, 4), 3, np.uint8))
    for tier, value in ((first, 1), (second, 2)):
        tier.write(tables[:1], ids[:1], np.full((1, 4), value, np.uint8))
    for tier, value in ((first, 1), (second, 2)):
        rows, found = tier.receive(tier.send(tables, ids))
        assert rows[:, 0].tolist() == [value, 3, 3, 0]
        assert found.tolist() == [True, True, True, False]
    assert not caplog.messages
    assert not first.receive(first.send(np.array([0]), np.array([4])))[1].any()
    assert "lacks 1 of 1 rows" in caplog.text
    first.close()
    second.close()
