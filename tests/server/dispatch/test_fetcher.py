"""The fetcher: rows of many requests at once, whatever the delay, and nothing of a store that hangs."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from polyrec.models.tiers.remote.fetched import FetchedRows
from polyrec.server.dispatch.fetcher import MAX_IN_FLIGHT, Fetcher
from tests.models.tiers.redis_cluster import SLOTS, RedisCluster
from tests.models.tiers.redis_server import RedisServer
from tests.models.tiers.worlds import world
from tests.server.dispatch.fetching import (
    ENCODER,
    REMOTE,
    WAIT_S,
    Run,
    assert_lost,
    assert_rows,
    fetch,
    opened,
    start,
)

FETCHES = MAX_IN_FLIGHT + 20


def test_more_requests_than_are_in_flight_at_a_time_all_give_their_rows(
    run: Run, store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    stack, random = opened(store, tmp_path, 60_000), np.random.default_rng(0)
    wanted = [np.unique(random.choice(REMOTE, random.integers(1, 60))) for _ in range(FETCHES)]
    # too large to be sent on the loop
    wanted[3] = REMOTE

    async def test() -> None:
        view = stack.views.enter()
        # the first keep their connections, so that later ones are sent while the store is stopped
        assert_rows(await fetch(fetcher, stack, view, wanted), wanted)
        store.signal(signal.SIGSTOP)
        found = start(fetcher, stack, view, wanted)
        await asyncio.sleep(0)
        assert not any(one.done() for one in found)
        store.signal(signal.SIGCONT)
        assert_rows(await asyncio.wait_for(asyncio.gather(*found), WAIT_S), wanted)
        stack.views.leave(view)

    run(test())
    stack.close()


@pytest.mark.parametrize("kind", ["TLS", "cluster"])
def test_rows_come_over_tls_and_from_the_servers_of_a_cluster(
    kind: str, run: Run, fetcher: Fetcher, tmp_path: Path
) -> None:
    servers = RedisServer(tmp_path, tls=True) if kind == "TLS" else RedisCluster(tmp_path)
    try:
        remote = {"url": servers.url, "timeout_ms": 60_000, "fill": True}
        if isinstance(servers, RedisServer):
            remote["ca_file"] = servers.ca_file
        stack = world(ENCODER, tmp_path, (0.0, 0.2, 0.5), remote=remote)
        wanted = [REMOTE, REMOTE[::5], REMOTE[::9]] * 30

        async def test() -> None:
            view = stack.views.enter()
            assert_rows(await fetch(fetcher, stack, view, wanted), wanted)
            assert_rows(await fetch(fetcher, stack, view, wanted), wanted)
            stack.views.leave(view)

        run(test())
        stack.close()
    finally:
        servers.kill()


def test_rows_of_a_slot_that_moves_are_asked_of_its_new_server(
    run: Run, fetcher: Fetcher, tmp_path: Path
) -> None:
    cluster = RedisCluster(tmp_path)
    try:
        remote = {"url": cluster.url, "timeout_ms": 60_000, "fill": True}
        stack = world(ENCODER, tmp_path, (0.0, 0.2, 0.5), remote=remote)
        (first,) = np.flatnonzero(cluster.owners(np.arange(SLOTS)) == 0)[:1]
        slot = next(slot for slot in range(int(first), SLOTS) if cluster.keys_of(0, slot))
        cluster.send(1, "CLUSTER", "SETSLOT", str(slot), "IMPORTING", cluster.name(0))
        cluster.send(0, "CLUSTER", "SETSLOT", str(slot), "MIGRATING", cluster.name(1))
        where = ("127.0.0.1", str(cluster.nodes[1].port), "", "0", "9000")
        assert cluster.send(0, "MIGRATE", *where, "KEYS", *cluster.keys_of(0, slot)) == b"OK"
        # those of table b are remote too
        wanted = [np.concatenate((REMOTE[i::9], np.arange(3350, 3500)[i::9])) for i in range(9)]

        async def test() -> None:
            view = stack.views.enter()
            for _ in range(2):
                before = cluster.error_count("ASK")
                assert_rows(await fetch(fetcher, stack, view, wanted), wanted)
                assert cluster.error_count("ASK") > before
            stack.views.leave(view)

        run(test())
        stack.close()
    finally:
        cluster.kill()


def test_rows_of_a_store_that_hangs_are_lost_after_its_timeout(
    run: Run, store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    stack = opened(store, tmp_path, 100)

    async def test() -> None:
        view = stack.views.enter()
        await fetch(fetcher, stack, view, [REMOTE[:50]])
        store.signal(signal.SIGSTOP)
        for layer in await fetch(fetcher, stack, view, [REMOTE[:50]] * FETCHES):
            assert_lost(layer)
        store.signal(signal.SIGCONT)
        stack.views.leave(view)

    run(test())
    stack.close()


def test_each_fetch_ends_at_its_own_timeout(
    run: Run, store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    stacks = [opened(store, tmp_path, timeout_ms) for timeout_ms in (60_000, 200, 60_000, 100)]

    async def test() -> None:
        views = [stack.views.enter() for stack in stacks]
        for stack, view in zip(stacks, views, strict=True):
            await fetch(fetcher, stack, view, [REMOTE[:50]])
        store.signal(signal.SIGSTOP)
        found = [
            start(fetcher, stack, view, [REMOTE[:50]])[0] for stack, view in zip(stacks, views, strict=True)
        ]
        for i in (3, 1):
            assert_lost(await asyncio.wait_for(found[i], WAIT_S / 2))
            assert not found[0].done()
            assert not found[2].done()
        store.signal(signal.SIGCONT)
        assert_rows([await found[0], await found[2]], [REMOTE[:50]] * 2)
        for stack, view in zip(stacks, views, strict=True):
            stack.views.leave(view)

    run(test())
    for stack in stacks:
        stack.close()


def test_the_loop_watches_no_socket_for_a_single_reply(
    run: Run, store: RedisServer, fetcher: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = opened(store, tmp_path, 60_000)

    async def test() -> None:
        loop, view = asyncio.get_running_loop(), stack.views.enter()
        await fetch(fetcher, stack, view, [REMOTE[:50]])
        watched: list[str] = []
        for name in ("add_reader", "call_later"):
            monkeypatch.setattr(loop, name, lambda *_, name=name: watched.append(name))
        found = start(fetcher, stack, view, [REMOTE[:50]])
        assert_rows([await found[0]], [REMOTE[:50]])
        assert not watched
        monkeypatch.undo()
        stack.views.leave(view)

    run(test())
    stack.close()


def test_opening_a_connection_to_a_store_that_hangs_does_not_block_the_loop(
    run: Run, store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    stack = opened(store, tmp_path, 500)

    async def test() -> None:
        view = stack.views.enter()
        store.signal(signal.SIGSTOP)
        found = start(fetcher, stack, view, [REMOTE[:50]] * 3)
        assert not any(one.done() for one in found), "the loop waited"
        for layer in await asyncio.wait_for(asyncio.gather(*found), WAIT_S):
            assert_lost(layer)
        store.signal(signal.SIGCONT)
        stack.views.leave(view)

    run(test())
    stack.close()


def test_a_long_queue_for_a_store_that_is_down_ends_at_once(
    run: Run, store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    """Each fetch that ends sends the next, which also ends at once; the stack is not that deep."""
    stack = opened(store, tmp_path, 1000 * int(WAIT_S))

    async def test() -> None:
        view = stack.views.enter()
        store.signal(signal.SIGSTOP)
        found = start(fetcher, stack, view, [REMOTE[:5]] * 3000)
        store.kill()
        for layer in await asyncio.wait_for(asyncio.gather(*found), WAIT_S):
            assert_lost(layer)
        assert_lost((await fetch(fetcher, stack, view, [REMOTE[:5]]))[0])
        stack.views.leave(view)

    run(test())
    stack.close()


def test_rows_of_a_store_that_dies_with_requests_in_flight_are_lost_at_once(
    run: Run, store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    stack = opened(store, tmp_path, 1000 * int(WAIT_S))

    async def test() -> None:
        view = stack.views.enter()
        await fetch(fetcher, stack, view, [REMOTE[:50]])
        store.signal(signal.SIGSTOP)
        found = start(fetcher, stack, view, [REMOTE[:50]])
        store.kill()
        # long before the timeout of its requests
        assert_lost(await asyncio.wait_for(found[0], WAIT_S / 2))
        assert_lost((await fetch(fetcher, stack, view, [REMOTE[:50]], WAIT_S / 2))[0])
        stack.views.leave(view)

    run(test())
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
    run: Run, store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    proxy = Halting(store)
    remote = {"url": proxy.url, "timeout_ms": 60_000, "fill": True}
    stacks = [world(ENCODER, tmp_path, (0.0, 0.2, 0.5), remote=remote), opened(store, tmp_path, 60_000)]

    async def test() -> None:
        views = [stack.views.enter() for stack in stacks]
        proxy.goes_on.clear()
        (first,) = start(fetcher, stacks[0], views[0], [REMOTE])
        assert await asyncio.to_thread(proxy.has_begun.wait, WAIT_S)
        for _ in range(2):
            assert_rows(await fetch(fetcher, stacks[1], views[1], [REMOTE], WAIT_S / 2), [REMOTE])
        assert not first.done()
        proxy.goes_on.set()
        assert_rows([await asyncio.wait_for(first, WAIT_S)], [REMOTE])
        for stack, view in zip(stacks, views, strict=True):
            stack.views.leave(view)

    run(test())
    for stack in stacks:
        stack.close()
    proxy.close()


def test_tiers_that_are_closed_give_nothing(
    run: Run, store: RedisServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    stack = opened(store, tmp_path, 60_000)
    view = stack.views.newest
    stack.close()

    async def test() -> None:
        assert await fetch(fetcher, stack, view, [REMOTE[:5]]) == [None]

    run(test())


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_closing_gives_up_all_fetches_and_lets_the_tiers_close(
    connected: bool, stopped: bool, ended: bool, run: Run, store: RedisServer, tmp_path: Path
) -> None:
    """stopped: whether the store hangs. ended: whether the loop has ended before."""
    stack, fetcher = opened(store, tmp_path, 1000), Fetcher()
    found: list[asyncio.Future[FetchedRows | None]] = []

    async def test() -> None:
        view = stack.views.newest
        if connected:
            await fetch(fetcher, stack, view, [REMOTE[:5]] * FETCHES)
        if stopped:
            store.signal(signal.SIGSTOP)
        given = start(fetcher, stack, view, [REMOTE[:5]] * FETCHES)
        if ended:
            found.extend(given)
            return
        fetcher.close()
        assert await asyncio.wait_for(asyncio.gather(*given), WAIT_S) == [None] * FETCHES

    run(test())
    fetcher.close()
    assert all(one.done() for one in found)
    # some may have been fetched while the loop ended
    assert not stopped or not any(one.result() for one in found)
    stack.close()
    assert stack.idle


def test_a_fetcher_that_is_closed_gives_nothing(run: Run, store: RedisServer, tmp_path: Path) -> None:
    stack, fetcher = opened(store, tmp_path, 60_000), Fetcher()
    fetcher.close()

    async def test() -> None:
        assert await fetch(fetcher, stack, stack.views.newest, [REMOTE[:5]]) == [None]

    run(test())
    stack.close()


def test_a_store_that_hangs_delays_no_fetch_from_another(run: Run, fetcher: Fetcher, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("hangs", "answers")]
    for folder in folders:
        folder.mkdir()
    hangs, answers = (RedisServer(folder) for folder in folders)
    try:
        stacks = [opened(server, tmp_path, 60_000) for server in (hangs, answers)]

        async def test() -> None:
            views = [stack.views.enter() for stack in stacks]
            await fetch(fetcher, stacks[0], views[0], [REMOTE])  # opens the connection
            hangs.signal(signal.SIGSTOP)
            (first,) = start(fetcher, stacks[0], views[0], [REMOTE])
            assert_rows(await fetch(fetcher, stacks[1], views[1], [REMOTE], WAIT_S / 2), [REMOTE])
            assert not first.done()
            hangs.signal(signal.SIGCONT)
            assert_rows([await asyncio.wait_for(first, WAIT_S)], [REMOTE])
            for stack, view in zip(stacks, views, strict=True):
                stack.views.leave(view)

        run(test())
        for stack in stacks:
            stack.close()
    finally:
        for server in (hangs, answers):
            server.kill()
