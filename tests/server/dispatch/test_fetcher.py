"""The fetcher: rows of many requests at once, whatever the delay, and nothing of a store that hangs."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from polyrec.models.tiers.remote.fetched import FetchedRows
from polyrec.models.tiers.stack import TierStack
from polyrec.server.dispatch.fetcher import MAX_IN_FLIGHT, Fetcher
from tests.models.tiers.redis_cluster import RedisCluster
from tests.models.tiers.redis_server import RedisServer
from tests.models.tiers.worlds import encoder_of, flat_weight, world

ENCODER = encoder_of({"a": 3000, "b": 500})
FETCHES = MAX_IN_FLIGHT + 20
REMOTE = np.arange(2100, 3000)
"""Rows of table a that `opened` leaves to the store."""
WAIT_S = 60.0

Fetched = tuple[int, FetchedRows | None]


def assert_lost(layer: FetchedRows | None) -> None:
    assert layer is not None
    assert layer.lost.all()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    fetcher = Fetcher()
    yield fetcher
    fetcher.close()


def opened(store: RedisServer, folder: Path, timeout_ms: int) -> TierStack:
    remote = {"url": store.url, "timeout_ms": timeout_ms, "fill": True}
    return world(ENCODER, folder, (0.0, 0.2, 0.5), remote=remote)


def test_more_requests_than_are_under_way_at_a_time_all_give_their_rows(
    store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    stack, random = opened(store, tmp_path, 60_000), np.random.default_rng(0)
    flat = flat_weight(ENCODER).numpy()
    wanted = [np.unique(random.choice(REMOTE, random.integers(1, 60))) for _ in range(FETCHES)]
    given: SimpleQueue[Fetched] = SimpleQueue()
    view = stack.views.enter()
    # the first keep their connections, so that later ones are sent while the store is stopped
    for i, rows in enumerate(wanted):
        fetcher.fetch(stack.ahead, view, rows, lambda layer, i=i: given.put((i, layer)))  # type: ignore[misc]
    before = [given.get(timeout=WAIT_S) for _ in wanted]
    store.signal(signal.SIGSTOP)
    for i, rows in enumerate(wanted):
        fetcher.fetch(stack.ahead, view, rows, lambda layer, i=i: given.put((i, layer)))  # type: ignore[misc]
    assert given.empty()
    store.signal(signal.SIGCONT)
    after = [given.get(timeout=WAIT_S) for _ in wanted]
    for fetched in (before, after):
        assert sorted(i for i, _ in fetched) == list(range(FETCHES))
        for i, layer in fetched:
            assert layer is not None
            np.testing.assert_array_equal(layer.rows, wanted[i])
            np.testing.assert_array_equal(layer.values.view(np.float32), flat[wanted[i]])
    stack.views.leave(view)
    stack.close()


@pytest.mark.parametrize("kind", ["TLS", "cluster"])
def test_rows_come_over_tls_and_from_the_servers_of_a_cluster(
    kind: str, fetcher: Fetcher, tmp_path: Path
) -> None:
    servers = RedisServer(tmp_path, tls=True) if kind == "TLS" else RedisCluster(tmp_path)
    try:
        remote = {"url": servers.url, "timeout_ms": 60_000, "fill": True}
        if isinstance(servers, RedisServer):
            remote["ca_file"] = servers.ca_file
        stack, flat = world(ENCODER, tmp_path, (0.0, 0.2, 0.5), remote=remote), flat_weight(ENCODER).numpy()
        given: SimpleQueue[FetchedRows | None] = SimpleQueue()
        view = stack.views.enter()
        for _ in range(FETCHES):
            fetcher.fetch(stack.ahead, view, REMOTE, given.put)
        for _ in range(FETCHES):
            layer = given.get(timeout=WAIT_S)
            assert layer is not None
            np.testing.assert_array_equal(layer.rows, REMOTE)
            np.testing.assert_array_equal(layer.values.view(np.float32), flat[REMOTE])
        stack.views.leave(view)
        stack.close()
    finally:
        servers.kill()


def test_rows_of_a_store_that_hangs_are_lost_after_its_timeout(
    store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    stack = opened(store, tmp_path, 100)
    given: SimpleQueue[FetchedRows | None] = SimpleQueue()
    view = stack.views.enter()
    fetcher.fetch(stack.ahead, view, REMOTE[:50], given.put)
    assert given.get(timeout=WAIT_S) is not None
    store.signal(signal.SIGSTOP)
    for _ in range(FETCHES):
        fetcher.fetch(stack.ahead, view, REMOTE[:50], given.put)
    for _ in range(FETCHES):
        assert_lost(given.get(timeout=WAIT_S))
    store.signal(signal.SIGCONT)
    stack.views.leave(view)
    stack.close()


def test_rows_of_a_store_that_dies_with_requests_under_way_are_lost_at_once(
    store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    stack = opened(store, tmp_path, 1000 * int(WAIT_S))
    given: SimpleQueue[FetchedRows | None] = SimpleQueue()
    view = stack.views.enter()
    fetcher.fetch(stack.ahead, view, REMOTE[:50], given.put)
    assert given.get(timeout=WAIT_S) is not None
    store.signal(signal.SIGSTOP)
    fetcher.fetch(stack.ahead, view, REMOTE[:50], given.put)
    store.kill()
    # long before the timeout of its requests
    assert_lost(given.get(timeout=WAIT_S / 2))
    fetcher.fetch(stack.ahead, view, REMOTE[:50], given.put)
    assert_lost(given.get(timeout=WAIT_S / 2))
    stack.views.leave(view)
    stack.close()


class Halting:
    """A proxy before a store that can keep back all of its replies but their first bytes."""

    def __init__(self, store: RedisServer) -> None:
        self._store = store
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.has_begun = threading.Event()
        self._serve(self._accept)

    def close(self) -> None:
        self.goes_on.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                store = socket.create_connection(("127.0.0.1", self._store.port))
                self._serve(self._copy, client, store)
                self._serve(self._copy, store, client)

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError), sink:
            while data := source.recv(1 << 20):
                if not self.goes_on.is_set() and sink.getsockname() == self._listener.getsockname():
                    sink.sendall(data[:10])
                    self.has_begun.set()
                    self.goes_on.wait(WAIT_S)
                    data = data[10:]
                sink.sendall(data)


def test_a_reply_that_has_come_in_part_delays_no_other(
    store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    proxy, flat = Halting(store), flat_weight(ENCODER).numpy()
    remote = {"url": proxy.url, "timeout_ms": 60_000, "fill": True}
    stacks = [world(ENCODER, tmp_path, (0.0, 0.2, 0.5), remote=remote), opened(store, tmp_path, 60_000)]
    given: tuple[SimpleQueue[FetchedRows | None], ...] = SimpleQueue(), SimpleQueue()
    views = [stack.views.enter() for stack in stacks]
    proxy.goes_on.clear()
    fetcher.fetch(stacks[0].ahead, views[0], REMOTE, given[0].put)
    assert proxy.has_begun.wait(WAIT_S)
    for _ in range(2):
        fetcher.fetch(stacks[1].ahead, views[1], REMOTE, given[1].put)
        assert given[1].get(timeout=WAIT_S / 2) is not None
    assert given[0].empty()
    proxy.goes_on.set()
    layer = given[0].get(timeout=WAIT_S)
    assert layer is not None
    np.testing.assert_array_equal(layer.values.view(np.float32), flat[REMOTE])
    for stack, view in zip(stacks, views, strict=True):
        stack.views.leave(view)
        stack.close()
    proxy.close()


def test_tiers_that_are_closed_give_nothing(store: RedisServer, fetcher: Fetcher, tmp_path: Path) -> None:
    stack = opened(store, tmp_path, 60_000)
    view = stack.views.newest
    stack.close()
    given: SimpleQueue[FetchedRows | None] = SimpleQueue()
    fetcher.fetch(stack.ahead, view, REMOTE[:5], given.put)
    assert given.get(timeout=WAIT_S) is None


def test_closing_waits_for_the_requests_under_way(store: RedisServer, tmp_path: Path) -> None:
    stack, fetcher = opened(store, tmp_path, 60_000), Fetcher()
    given: SimpleQueue[FetchedRows | None] = SimpleQueue()
    view = stack.views.newest
    for _ in range(FETCHES):
        fetcher.fetch(stack.ahead, view, REMOTE[:5], given.put)
    fetcher.close()
    assert given.qsize() == FETCHES
    stack.close()


def test_closing_again_leaves_descriptors_alone_that_other_files_have_got_since() -> None:
    """A reload closes the tiers of the previous generation twice."""
    fetcher = Fetcher()
    fetcher.close()
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(4)]
    fetcher.close()
    for other in others:
        with pytest.raises(BlockingIOError):  # neither written to nor closed
            os.eventfd_read(other)
        os.close(other)


def test_a_fetcher_that_is_closed_gives_nothing(store: RedisServer, tmp_path: Path) -> None:
    stack, fetcher = opened(store, tmp_path, 60_000), Fetcher()
    fetcher.close()
    given: SimpleQueue[FetchedRows | None] = SimpleQueue()
    fetcher.fetch(stack.ahead, stack.views.newest, REMOTE[:5], given.put)
    assert given.get_nowait() is None
    stack.close()


def test_a_store_that_hangs_delays_no_fetch_from_another(fetcher: Fetcher, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("hangs", "answers")]
    for folder in folders:
        folder.mkdir()
    hangs, answers = (RedisServer(folder) for folder in folders)
    try:
        stacks = [opened(server, tmp_path, 60_000) for server in (hangs, answers)]
        views = [stack.views.enter() for stack in stacks]
        given: tuple[SimpleQueue[FetchedRows | None], ...] = SimpleQueue(), SimpleQueue()

        def fetch(i: int) -> None:
            fetcher.fetch(stacks[i].ahead, views[i], REMOTE, given[i].put)

        fetch(0)  # opens the connection
        assert given[0].get(timeout=WAIT_S) is not None
        hangs.signal(signal.SIGSTOP)
        fetch(0)
        fetch(1)
        assert given[1].get(timeout=WAIT_S / 2) is not None
        assert given[0].empty()
        hangs.signal(signal.SIGCONT)
        assert given[0].get(timeout=WAIT_S) is not None
        for stack, view in zip(stacks, views, strict=True):
            stack.views.leave(view)
            stack.close()
    finally:
        for server in (hangs, answers):
            server.kill()
