"""Answers of several servers read as they come, against real ones."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrec.models.tiers.remote.exchange import Exchange, finish
from polyrec.models.tiers.remote.resp import Link, RespError, RowReplies, clock, commands, keys
from tests.models.tiers.redis_server import RedisServer

SIZE = 16


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RedisServer]]:
    servers = [RedisServer(tmp_path) for _ in range(2)]
    yield servers
    for server in servers:
        server.kill()


Filled = tuple[Link, NDArray[np.uint8]]
Fill = Callable[[RedisServer, int], Filled]


@pytest.fixture
def filled() -> Iterator[Fill]:
    """A connection and so many rows that the server has, of ids from 0."""
    links: list[Link] = []

    def fill(server: RedisServer, rows: int) -> Filled:
        values = np.random.default_rng(server.port).integers(0, 256, (rows, SIZE), np.uint8)
        link = Link(server.url, 20.0)
        links.append(link)
        taken = RowReplies.nothing(rows, 0)
        data = commands(b"SET", keys("k:", np.arange(rows)), values)
        stored = Exchange(link, data, link.acknowledged(taken))
        finish([stored], clock() + 20)
        assert stored.error is None
        assert taken.found.all()
        return link, values

    yield fill
    for link in links:
        link.close()


def get(link: Link, rows: int) -> tuple[Exchange, RowReplies]:
    taken = RowReplies.nothing(rows, SIZE)
    return Exchange(link, commands(b"GET", keys("k:", np.arange(rows))), link.rows(taken)), taken


def test_received_replies_are_read_after_the_deadline(servers: list[RedisServer], filled: Fill) -> None:
    link, values = filled(servers[0], 3)
    exchange, taken = get(link, 3)
    assert select.select([link], [], [], 20)[0]
    finish([exchange], clock() - 1)
    assert exchange.error is None
    np.testing.assert_array_equal(taken.values, values)


def test_requests_larger_than_the_socket_buffer_are_sent_and_read(
    servers: list[RedisServer], filled: Fill
) -> None:
    rows = 200_000
    asked = [(*get(link, rows), values) for link, values in (filled(server, rows) for server in servers)]
    finish([exchange for exchange, *_ in asked], clock() + 60)
    for exchange, taken, values in asked:
        assert exchange.error is None
        assert taken.found.all()
        np.testing.assert_array_equal(taken.values, values)


def test_a_hanging_server_times_out_and_the_others_are_read(servers: list[RedisServer], filled: Fill) -> None:
    links = [filled(server, 100) for server in servers]
    servers[0].signal(signal.SIGSTOP)
    asked = [get(link, 100) for link, _ in links]
    assert select.select([links[1][0]], [], [], 20)[0]
    finish([exchange for exchange, _ in asked], clock())
    assert isinstance(asked[0][0].error, TimeoutError)
    assert asked[1][0].error is None
    np.testing.assert_array_equal(asked[1][1].values, links[1][1])
    servers[0].signal(signal.SIGCONT)


def test_a_refused_row_does_not_affect_the_others(servers: list[RedisServer], filled: Fill) -> None:
    link, values = filled(servers[0], 4)
    link.call(b"DEL", bytes(keys("k:", np.array([1]))[0]), timeout_s=20.0)
    link.call(b"LPUSH", bytes(keys("k:", np.array([1]))[0]), b"not a row", timeout_s=20.0)
    link.call(b"SET", bytes(keys("k:", np.array([2]))[0]), b"short", timeout_s=20.0)
    exchange, taken = get(link, 5)
    finish([exchange], clock() + 20)
    assert exchange.error is None
    assert taken.found.tolist() == [True, False, False, True, False]
    ((place, said),) = taken.errors
    assert place == 1
    assert said.startswith(b"WRONGTYPE")
    np.testing.assert_array_equal(taken.values[[0, 3]], values[[0, 3]])


def test_a_connection_that_ends_is_an_error(servers: list[RedisServer], filled: Fill) -> None:
    link, _ = filled(servers[0], 1)
    servers[0].kill()
    exchange, taken = get(link, 1)
    finish([exchange], clock() + 20)
    assert isinstance(exchange.error, OSError | RespError)
    assert not taken.found.any()
