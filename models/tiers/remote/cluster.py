"""Discovers the servers of a remote store: a single server, or the masters of a Redis Cluster by slot.

The server of the URL reports whether it is part of a cluster, and each member knows the others. A failed
server gets no requests, until a thread that retries it gets an answer and every slot is served.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from polyrec.models.tiers.remote.login import Login
from polyrec.models.tiers.remote.server import Server

FIRST_TIMEOUT_S = 10.0
"""Timeout of the first discovery."""
REPAIR_WAIT_S = (0.05, 1.0)
"""First and longest wait between repair attempts; the wait doubles each time."""
REPAIR_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ServerRows:
    """The rows of a batch on one server.

    rows: indices into the batch. asking: whether the slot is being migrated to this server.
    """

    server: Server
    rows: Sequence[int]
    asking: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The servers of a Redis Cluster by hash slot.

    of_slot: the server of each slot, None if it has none. The whole list is None for a single server.
    """

    servers: tuple[Server, ...]
    of_slot: list[Server | None] | None = None

    @property
    def whole(self) -> bool:
        """Whether every slot has a server, and all servers answer."""
        served_all = self.of_slot is None or None not in self.of_slot
        return served_all and all(server.up for server in self.servers)

    def parts(self, keys: Sequence[bytes]) -> list[ServerRows]:
        """Groups rows by server; leaves out rows of unserved slots."""
        if self.of_slot is None:
            return [ServerRows(server, range(len(keys))) for server in self.servers]
        rows: dict[Server, list[int]] = {}
        for i, key in enumerate(keys):
            server = self.of_slot[key_slot(key)]
            if server is not None:
                rows.setdefault(server, []).append(i)
        return [ServerRows(server, own) for server, own in rows.items()]


class Cluster:
    """The servers of a store and the current routes. Thread-safe.

    url: address of the server or of any server of the cluster, without credentials.
    failures: number of failed connections so far.
    on_restart: called when a server was restarted or another one has taken its place, and so may have lost
    rows that were written last: Redis's snapshots and replicas are behind.
    """

    def __init__(self, url: str, login: Login, timeout_s: float) -> None:
        self._url, self._login = url, login
        self._timeout_s = max(timeout_s, REPAIR_TIMEOUT_S)
        self.failures = 0
        self.on_restart: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        self._servers: dict[str, Server] = {}
        self._closed = threading.Event()
        self._repairer: threading.Thread | None = None
        self._repair_again = False
        seed = self.server(url)
        self.routes = Routes((seed,))
        self._has_discovered = False
        try:
            self._discover(FIRST_TIMEOUT_S)
        except OSError as e:
            # not as late, which alone would leave it in use with unknown routes
            self.fail(seed, OSError(str(e)))

    def server(self, url: str) -> Server:
        with self._lock:
            return self._servers.setdefault(url, Server(url, self._login, self.repair))

    def fail(self, server: Server, error: Exception) -> None:
        """Counts a failure. A server that is down gets no requests until it answers."""
        with self._lock:
            self.failures += 1
        routes = self.routes.servers
        if server not in routes and routes:
            # known only from redirects: the next repair removes it, and another redirect adds it anew
            routes[0].log_target(server, error)
            self.repair()
        elif server.fail(error):
            self.repair()

    def repair(self) -> None:
        """Starts the thread that updates the routes and retries servers, unless it is running."""
        with self._lock:
            self._repair_again = True
            if self._repairer is None and not self._closed.is_set():
                self._repairer = threading.Thread(target=self._repair, name="polyrec-remote", daemon=True)
                self._repairer.start()

    def close(self) -> None:
        """Stops the repairs and closes the connections to all servers."""
        self._closed.set()
        repairer = self._repairer
        if repairer is not None:
            repairer.join()
        for server in self._servers.values():
            server.close()

    def _discover(self, timeout_s: float) -> None:
        """Updates the routes and removes servers that have left. Raises OSError if no server answers."""
        known = self.routes.servers
        error = OSError("no server is known")
        for server in dict.fromkeys([*(s for s in known if s.up), self.server(self._url), *known]):
            try:
                masters = server.masters(timeout_s)
                break
            except OSError as e:
                error = e
        else:
            raise error
        if masters is None:
            routes = Routes((self.server(self._url),))
        else:
            of_slot: list[Server | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
            for first, last, url in masters:
                of_slot[first : last + 1] = [self.server(url)] * (last + 1 - first)
            routes = Routes(tuple({server for server in of_slot if server is not None}), of_slot)
        is_first = not self._has_discovered
        joined = [server for server in routes.servers if is_first or server not in known]
        for server in joined:
            server.has_restarted(self._timeout_s)  # remembers its run id
        if joined and not is_first:
            self.on_restart()
        with self._lock:
            self.routes, self._has_discovered = routes, True
            gone = [self._servers.pop(url) for url in self._servers.keys() - {s.url for s in routes.servers}]
        for server in gone:
            server.close()
        if not routes.whole:
            self.repair()

    def _repair(self) -> None:
        wait_s, longest_s = REPAIR_WAIT_S
        while not self._closed.wait(wait_s):
            wait_s = min(2 * wait_s, longest_s)
            with self._lock:
                self._repair_again = False
            with suppress(OSError):
                self._discover(self._timeout_s)
            for server in self.routes.servers:
                with suppress(OSError):
                    server.revive(self._timeout_s, self.on_restart)
            with self._lock:
                if self.routes.whole and not self._repair_again:
                    self._repairer = None
                    return
