"""Implements the remote tier: rows in a Redis server or a Redis Cluster.

The key of a row is `prefix`, its table and its stable id in twelve digits; the prefix contains the bundle's
version (`polyrec:77ae9b8aec1e:item:000000000042`), because rows of another bundle would be wrong and fit. The
value is the row's bytes as in the bundle. Keys do not depend on the row order, so drift does not move them.
Reserved rows have keys that no other tier has (`polyrec:77ae9b8aec1e:item:5f0c1d2e3b4a5968:000000000042`),
since each server assigns them to new values in its own order.

A batch sends one pipelined request to each server that has rows of it: one MGET to a single server, GETs to a
cluster, which refuses an MGET across slots. Replies are read after all requests are sent, within one timeout.
If a server hangs, replies that the others have sent by then are still read. Redirected rows (MOVED, ASK) are
requested from the other server in the remaining time.

If a server does not answer in time or lacks a row, the table's out-of-vocabulary row is used and counted, and
the answer is marked as degraded.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hiredis import ReplyError
from numpy.typing import NDArray
from redis.connection import Connection
from redis.exceptions import RedisError

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.remote.cluster import Cluster, ServerRows
from polyrec.models.tiers.remote.fetched import store_clock
from polyrec.models.tiers.remote.login import Login, without_login
from polyrec.models.tiers.remote.request import (
    ServerRequest,
    replies_of,
    send_commands,
    values_of,
)
from polyrec.models.tiers.remote.server import Server
from polyrec.models.tiers.slab import Bytes

WRITE_TIMEOUT_S = 10.0
WRITE_ROWS = 4096
ROWS_AT_ONCE, BYTES_AT_ONCE = 256, 1 << 14
"""Maximum rows, and bytes of their keys, of a request sent without waiting: what a socket's buffer holds."""
MAX_REDIRECTS = 4
"""Maximum redirects of rows to be written."""
MIN_S = 0.001
"""Minimum timeout of a connection."""
REDIRECT = re.compile(r"(MOVED|ASK) \d+ (.*):(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class PendingBatch:
    """The requests of a batch in progress. until_s: deadline by `store_clock`."""

    tables: I64
    keys: list[bytes]
    requests: list[ServerRequest]
    until_s: float

    @property
    def redirected(self) -> bool:
        """Whether a server has redirected rows, so that `receive` will ask others and wait for them."""
        return any(
            isinstance(reply, ReplyError) and REDIRECT.fullmatch(str(reply))
            for request in self.requests
            for reply in request.replies
        )


class RemoteTier:
    """Stores rows by (table, stable id). Thread-safe.

    url: address of the server or of any server of the cluster. tables: their names.
    fallback: uint8 [tables, bytes per row], each table's out-of-vocabulary row.
    login: credentials for all servers, by default those in the URL.
    sound: returns which values, uint8 [n, bytes per row], can be rows; None: all of that length.
    reserved: for tables, by index, with rows that are assigned to new values: their ids, int64, ascending.
    """

    def __init__(
        self,
        url: str,
        tables: Sequence[str],
        fallback: Bytes,
        timeout_s: float = 0.02,
        prefix: str = "polyrec:",
        login: Login | None = None,
        sound: Callable[[Bytes], NDArray[np.bool_]] | None = None,
        reserved: Mapping[int, I64] | None = None,
    ) -> None:
        self.url, self.timeout_s = without_login(url), timeout_s
        self._sound = sound
        self.fallback = fallback
        token = secrets.token_hex(8)
        self._heads = [f"{prefix}{table}:".encode() for table in tables]
        self._heads += [f"{prefix}{table}:{token}:".encode() for table in tables]
        self._own = f":{token}:".encode()
        self._reserved = reserved or {}
        self._cluster = Cluster(self.url, login or Login.from_url(url), timeout_s)

    @property
    def up(self) -> bool:
        """Whether every slot is served, and all servers answered their last request."""
        return self._cluster.routes.whole

    @property
    def failures(self) -> int:
        """Number of failed connections so far."""
        return self._cluster.failures

    def on_restart(self, restore: Callable[[], object]) -> None:
        """Sets what is called when a server has come back, perhaps without the last values written."""
        self._cluster.on_restart = restore

    def send(self, tables: I64, ids: I64) -> PendingBatch:
        """Sends requests for rows; the caller must then call `receive` or `abandon`.

        tables, ids: int64 [n], ids >= 0. Opening connections may take up to the timeout.
        """
        keys, routes = self._keys(tables, ids), self._cluster.routes
        until_s = store_clock() + self.timeout_s
        requests = self._get(routes.parts(keys), keys, until_s, as_mget=routes.of_slot is None)
        return PendingBatch(tables, keys, requests, store_clock() + self.timeout_s)

    def send_at_once(self, tables: I64, ids: I64) -> PendingBatch | None:
        """Like `send`; returns None, with nothing sent, where that might wait.

        That is if a server has no open connection, or the request is larger than a socket's buffer may be.
        """
        if ids.size > ROWS_AT_ONCE:
            return None
        keys, routes = self._keys(tables, ids), self._cluster.routes
        if sum(map(len, keys)) > BYTES_AT_ONCE:
            return None
        taken: list[tuple[ServerRows, Connection]] = []
        for part in _askable(routes.parts(keys)):
            connection = part.server.take_open()
            if connection is None:
                for other, given in taken:
                    other.server.put_back(given)
                return None
            taken.append((part, connection))
        as_mget = routes.of_slot is None
        sent = [self._request(part, keys, as_mget, connection=connection) for part, connection in taken]
        requests = [request for request in sent if request is not None]
        return PendingBatch(tables, keys, requests, store_clock() + self.timeout_s)

    def receive(self, batch: PendingBatch) -> tuple[Bytes, NDArray[np.bool_]]:
        """Returns (rows, uint8 [n, bytes per row]; found, bool [n]) in the order of `send`."""
        rows = self.fallback[batch.tables]
        found = np.zeros(len(rows), bool)
        moved = self._collect(batch.requests, batch.keys, batch.until_s, rows, found)
        if moved:
            # follow one redirect only; rows still not found use the fallback
            self._collect(self._get(moved, batch.keys, batch.until_s), batch.keys, batch.until_s, rows, found)
        return rows, found

    def abandon(self, batch: PendingBatch) -> None:
        """Discards a sent batch; call this instead of `receive`."""
        for request in batch.requests:
            request.connection.disconnect()

    def write(self, tables: I64, ids: I64, values: Bytes) -> None:
        """Stores rows. values: uint8 [n, bytes per row]. Raises OSError, possibly after writing some rows."""
        # separate connections, because those for reading have a shorter timeout
        connections: dict[Server, Connection] = {}
        try:
            for start in range(0, ids.size, WRITE_ROWS):
                own = slice(start, start + WRITE_ROWS)
                keys = self._keys(tables[own], ids[own])
                self._write(connections, keys, [row.tobytes() for row in values[own]])
        finally:
            for connection in connections.values():
                connection.disconnect()

    def close(self) -> None:
        self._cluster.close()

    def _keys(self, tables: I64, ids: I64) -> list[bytes]:
        heads = tables
        for table, reserved in self._reserved.items():
            place = np.minimum(np.searchsorted(reserved, ids), reserved.size - 1)
            own = (tables == table) & (reserved[place] == ids)
            heads = heads + own * len(self.fallback)
        return [b"%s%012d" % (self._heads[h], i) for h, i in zip(heads.tolist(), ids.tolist(), strict=True)]

    def _get(
        self, parts: Sequence[ServerRows], keys: Sequence[bytes], until_s: float, as_mget: bool = False
    ) -> list[ServerRequest]:
        """Sends requests for rows, skipping servers that are down. as_mget: uses one MGET per server."""
        sent = (self._request(part, keys, as_mget, until_s) for part in _askable(parts))
        return [request for request in sent if request is not None]

    def _request(
        self,
        part: ServerRows,
        keys: Sequence[bytes],
        as_mget: bool,
        until_s: float = 0.0,
        connection: Connection | None = None,
    ) -> ServerRequest | None:
        """Sends the request for one server's rows; returns None if that fails, which counts as its failure.

        connection: an open one; None: one of the server's, opened until `until_s` if none is idle.
        """
        try:
            at_once = connection is not None
            if connection is None:
                connection = part.server.take(max(until_s - store_clock(), MIN_S))
            names = [keys[i] for i in part.rows]
            commands = [(b"MGET", *names)] if as_mget else [(b"GET", name) for name in names]
            return send_commands(part, connection, commands, self.fallback.shape[1], at_once)
        except (OSError, RedisError) as e:
            self._cluster.fail(part.server, e)
            return None

    def _collect(
        self,
        requests: Sequence[ServerRequest],
        keys: Sequence[bytes],
        until_s: float,
        rows: Bytes,
        found: NDArray[np.bool_],
    ) -> list[ServerRows]:
        """Writes replies that arrive in time to `rows` and `found`; returns redirected rows."""
        size = rows.shape[1]
        moved: list[ServerRows] = []
        for request in requests:
            part = request.part
            replies, error = replies_of(request, until_s)
            if error is None:
                part.server.answered(request.connection)
            else:
                self._cluster.fail(part.server, error)
            there, given = values_of(part.rows, replies, size)
            if self._sound is not None and there.size:
                sound = self._sound(given)
                if not sound.all():
                    there, given = there[sound], given[sound]
            rows[there] = given
            found[there] = True
            if there.size < len(part.rows):
                # a reserved row is absent until its first vector, which is overlaid, is written
                absent = sum(
                    reply is None and self._own not in keys[i]
                    for i, reply in zip(part.rows, replies, strict=False)
                )
                if absent:
                    part.server.log_absent(absent, len(replies))
                if foreign := sum(type(reply) is bytes for reply in replies) - there.size:
                    part.server.log_foreign(foreign, len(replies))
                moved += self._redirected(part, replies)
        return moved

    def _redirected(self, part: ServerRows, replies: Sequence[Any]) -> list[ServerRows]:
        """Groups the redirected rows of a request by target server."""
        where: dict[tuple[str, bool], list[int]] = {}
        for i, reply in zip(part.rows, replies, strict=False):
            if isinstance(reply, ReplyError):
                redirect = REDIRECT.fullmatch(str(reply))
                if redirect is None:
                    part.server.log_error(str(reply))
                else:
                    word, host, port = redirect.groups()
                    where.setdefault((part.server.sibling(host, int(port)), word == "ASK"), []).append(i)
                if redirect is None or redirect[1] == "MOVED":
                    self._cluster.repair()
        return [ServerRows(self._cluster.server(url), rows, asking) for (url, asking), rows in where.items()]

    def _write(
        self, connections: dict[Server, Connection], keys: Sequence[bytes], values: Sequence[bytes]
    ) -> None:
        parts, stored = self._cluster.routes.parts(keys), 0
        why = "no server of the cluster has their slots"
        for _ in range(MAX_REDIRECTS):
            requests = [self._set(connections, part, keys, values) for part in parts]
            until_s = store_clock() + WRITE_TIMEOUT_S
            parts = []
            for request in requests:
                replies, error = replies_of(request, until_s)
                if error is not None:
                    server = request.part.server
                    self._cluster.fail(server, error)
                    raise OSError(f"the store at {server.place} failed: {error}")
                stored += replies.count(b"OK")
                parts += self._redirected(request.part, replies)
                why = next((str(reply) for reply in replies if isinstance(reply, ReplyError)), why)
            if stored == len(keys):
                return
            if stored + sum(len(part.rows) for part in parts) < len(keys):
                break
        raise OSError(f"{len(keys) - stored} rows are not stored: {why}")

    def _set(
        self,
        connections: dict[Server, Connection],
        part: ServerRows,
        keys: Sequence[bytes],
        values: Sequence[bytes],
    ) -> ServerRequest:
        """Sends new values of one server's rows. Raises OSError."""
        server = part.server
        if not server.up:
            raise OSError(f"the store at {server.place} does not answer: {server.why_down}")
        try:
            if server not in connections:
                connections[server] = server.connect(WRITE_TIMEOUT_S)
            commands = [(b"SET", keys[i], values[i]) for i in part.rows]
            return send_commands(part, connections[server], commands, 0)
        except (OSError, RedisError) as e:
            self._cluster.fail(server, e)
            raise OSError(f"the store at {server.place} failed: {server.reason(e)}") from None


def _askable(parts: Sequence[ServerRows]) -> Iterator[ServerRows]:
    """Yields the parts with rows, of servers that are up by then."""
    return (part for part in parts if part.server.up and part.rows)
