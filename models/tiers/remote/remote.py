"""The remote tier: rows in a Redis server or a Redis Cluster.

The key of a row is `prefix`, its table and its stable id in twelve digits, `polyrec:item:000000000042`; the
value is the row's bytes as in the bundle. Keys do not depend on the row order, so drift does not move them. A
batch sends one pipelined request to each server that has rows of it, concurrently and within one timeout: one
MGET per table to a single server, GETs to a cluster, which refuses an MGET over several slots. Redirected
rows (MOVED, ASK) are requested from the other server in the remaining time.

If a server does not answer in time, or lacks a row, the table's out-of-vocabulary row is used and counted,
and the answer is marked as degraded. A failed server gets no requests; a thread retries it until it answers
and every slot is served.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.remote.exchange import Exchange, finish
from polyrec.models.tiers.remote.login import Login, bare
from polyrec.models.tiers.remote.node import Node, PooledLink
from polyrec.models.tiers.remote.resp import RespError, RowReplies, clock, command, commands, keys
from polyrec.models.tiers.remote.routes import NOBODY, Routes, discover, host_of, url_of
from polyrec.models.tiers.remote.slots import KeySlots
from polyrec.models.tiers.slab import Bytes

REPAIR_WAIT_S = (0.05, 1.0)
"""First and longest wait between repair attempts; the wait doubles each time."""
REPAIR_TIMEOUT_S = 1.0
WRITE_TIMEOUT_S = 10.0
WRITE_ROWS = 4096
MAX_REDIRECTS = 4
"""Maximum redirects of rows to be written."""
LEAST_S = 0.001
"""Minimum timeout of a new connection."""
ELSEWHERE = re.compile(rb"(MOVED|ASK) \d+ (.*):(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class NodeRows:
    """The rows of a batch on one server.

    rows: indices into the batch, int64 [n], sorted by table. asking: the slot is being migrated to this
    server.
    """

    node: Node
    rows: I64
    asking: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class NodeRequest:
    """A request to one server in progress."""

    part: NodeRows
    pooled: PooledLink
    exchange: Exchange
    replies: RowReplies


@dataclass(frozen=True, slots=True, eq=False)
class PendingBatch:
    """The requests of a batch in progress. until_s: deadline by `clock`."""

    tables: I64
    ids: I64
    requests: list[NodeRequest]
    until_s: float


class RemoteTier:
    """Rows by (table, stable id) in a store. Thread-safe.

    url: of the server, or of any server of the cluster. tables: names. fallback: uint8 [tables, bytes of a
    row], the out-of-vocabulary row of each. login: for all servers; default: from the URL.
    """

    def __init__(
        self,
        url: str,
        tables: Sequence[str],
        fallback: Bytes,
        timeout_s: float = 0.02,
        prefix: str = "polyrec:",
        login: Login | None = None,
    ) -> None:
        self._login = login or Login.of_url(url)
        url = bare(url)
        self.url, self.timeout_s = url, timeout_s
        self.fallback = fallback
        self._prefixes = [f"{prefix}{table}:" for table in tables]
        self._slots = KeySlots(self._prefixes)
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._past_failures = 0
        self._closed = threading.Event()
        self._repairer: threading.Thread | None = None
        self._repair_again = False
        seed = self._node(url)
        self._routes = Routes({url: seed})
        # a server that does not answer is retried in the background
        with contextlib.suppress(OSError):
            seed.give_back(seed.open_link(WRITE_TIMEOUT_S))
            self._discover(WRITE_TIMEOUT_S)

    @property
    def up(self) -> bool:
        """Whether every slot is served, and all servers answered their last request."""
        return self._routes.whole

    @property
    def failures(self) -> int:
        """Number of failed connections so far."""
        with self._lock:
            return self._past_failures + sum(node.failures for node in self._nodes.values())

    def send(self, tables: I64, ids: I64) -> PendingBatch:
        """Sends requests for rows; the caller must then call `receive` or `abandon`.

        tables, ids: int64 [n], ids >= 0. New connections may take up to the timeout.
        """
        routes = self._routes
        linked = self._with_links(self._parts(routes, tables, ids), clock() + self.timeout_s)
        until_s = clock() + self.timeout_s
        arrays = routes.of_slot is None
        requests = [self._get(part, pooled, tables, ids, arrays) for part, pooled in linked]
        return PendingBatch(tables, ids, requests, until_s)

    def receive(self, batch: PendingBatch) -> tuple[Bytes, NDArray[np.bool_]]:
        """Returns (rows, uint8 [n, bytes]; found, bool [n]) in the order of `send`."""
        rows = self.fallback[batch.tables]
        found = np.zeros(len(rows), bool)
        elsewhere = self._collect(batch.requests, batch.until_s, rows, found)
        # one redirect only; rows not found then use the fallback
        linked = self._with_links(elsewhere, batch.until_s)
        redirected = [self._get(part, pooled, batch.tables, batch.ids) for part, pooled in linked]
        self._collect(redirected, batch.until_s, rows, found)
        return rows, found

    def abandon(self, batch: PendingBatch) -> None:
        """Discards a batch instead of `receive`."""
        for request in batch.requests:
            request.pooled.link.close()

    def write(self, tables: I64, ids: I64, values: Bytes) -> None:
        """Stores rows. values: uint8 [n, bytes of a row]. Raises OSError; some rows may then be written."""
        # new connections: pooled ones may be to a server that has restarted since
        links: dict[tuple[Node, bool], PooledLink] = {}
        try:
            for start in range(0, ids.size, WRITE_ROWS):
                own = slice(start, start + WRITE_ROWS)
                self._write(links, tables[own], ids[own], values[own])
        except OSError:
            for pooled in links.values():
                pooled.link.close()
            raise
        for (node, _), pooled in links.items():
            node.give_back(pooled)

    def close(self) -> None:
        self._closed.set()
        repairer = self._repairer
        if repairer is not None:
            repairer.join()
        for node in self._nodes.values():
            node.close()

    def _parts(self, routes: Routes, tables: I64, ids: I64) -> list[NodeRows]:
        """Groups rows by server; rows of unserved slots are left out."""
        nodes = list(routes.nodes.values())
        if routes.of_slot is None:
            return [NodeRows(nodes[0], np.argsort(tables, kind="stable"))]
        owner = routes.of_slot[self._slots.of(tables, ids)].astype(np.int64)
        order = np.argsort(owner * len(self._prefixes) + tables, kind="stable")
        ends = np.searchsorted(owner[order], np.arange(NOBODY, len(nodes)), side="right").tolist()
        return [
            NodeRows(node, order[first:end])
            for node, first, end in zip(nodes, ends, ends[1:], strict=False)
            if end > first
        ]

    def _with_links(self, parts: Sequence[NodeRows], until_s: float) -> list[tuple[NodeRows, PooledLink]]:
        """Takes a connection for each part; parts target server is down are left out."""
        found = []
        for part in parts:
            pooled = part.node.take(max(until_s - clock(), LEAST_S))
            if pooled is not None:
                found.append((part, pooled))
        return found

    def _get(
        self, part: NodeRows, pooled: PooledLink, tables: I64, ids: I64, arrays: bool = False
    ) -> NodeRequest:
        """Sends the request for a part's rows. arrays: use MGET."""
        replies = RowReplies.nothing(part.rows.size, self.fallback.shape[1])
        counts, keyed = self._keyed(tables[part.rows], ids[part.rows])
        if arrays:
            data = b"".join(command(b"MGET", key) for key in keyed)
            reading = pooled.link.rows_of_arrays(replies, counts)
        else:
            data = b"".join(commands(b"GET", key, asking=part.asking) for key in keyed)
            reading = pooled.link.rows(replies, part.asking)
        return NodeRequest(part, pooled, Exchange(pooled.link, data, reading), replies)

    def _set(self, part: NodeRows, pooled: PooledLink, tables: I64, ids: I64, values: Bytes) -> NodeRequest:
        """Sends new values of a part's rows."""
        replies = RowReplies.nothing(part.rows.size, 0)
        counts, keyed = self._keyed(tables[part.rows], ids[part.rows])
        split = np.split(values[part.rows], np.cumsum(counts)[:-1])
        data = b"".join(
            commands(b"SET", key, own, asking=part.asking) for key, own in zip(keyed, split, strict=True)
        )
        reading = pooled.link.acknowledged(replies, part.asking)
        return NodeRequest(part, pooled, Exchange(pooled.link, data, reading), replies)

    def _keyed(self, tables: I64, ids: I64) -> tuple[list[int], list[Bytes]]:
        """Returns the number of rows of each table that occurs, and their keys. tables: sorted."""
        present, counts = np.unique(tables, return_counts=True)
        split = np.split(ids, np.cumsum(counts)[:-1])
        return counts.tolist(), [
            keys(self._prefixes[table], own) for table, own in zip(present.tolist(), split, strict=True)
        ]

    def _collect(
        self, requests: Sequence[NodeRequest], until_s: float, rows: Bytes, found: NDArray[np.bool_]
    ) -> list[NodeRows]:
        """Stores replies that arrive in time in `rows` and `found`; returns redirected rows."""
        finish([request.exchange for request in requests], until_s)
        elsewhere: list[NodeRows] = []
        for request in requests:
            replies, node, error = request.replies, request.part.node, request.exchange.error
            there = request.part.rows[replies.found]
            rows[there] = replies.values[replies.found]
            found[there] = True
            elsewhere += self._redirected(request)
            if error is None:
                node.give_back(request.pooled)
            else:
                node.failed(error, request.pooled)
        return elsewhere

    def _redirected(self, request: NodeRequest) -> list[NodeRows]:
        """Returns the redirected rows of a request by target server."""
        where: dict[tuple[str, bool], list[int]] = {}
        for place, message in request.replies.errors:
            redirect = ELSEWHERE.fullmatch(message)
            if redirect is not None:
                word, host, port = redirect.groups()
                address = host.decode() or host_of(request.part.node.url), int(port)
                where.setdefault((url_of(self.url, address), word == b"ASK"), []).append(place)
            if redirect is None or redirect[1] == b"MOVED":
                self._start_repair()
        rows = request.part.rows
        return [NodeRows(self._node(url), rows[places], asking) for (url, asking), places in where.items()]

    def _write(
        self, links: dict[tuple[Node, bool], PooledLink], tables: I64, ids: I64, values: Bytes
    ) -> None:
        parts, stored = self._parts(self._routes, tables, ids), 0
        for _ in range(MAX_REDIRECTS):
            requests = []
            for part in parts:
                if not part.node.up:
                    raise RespError(f"the store at {part.node.place} does not answer")
                target = part.node, part.asking
                if target not in links:
                    links[target] = part.node.open_link(REPAIR_TIMEOUT_S)
                requests.append(self._set(part, links[target], tables, ids, values))
            finish([request.exchange for request in requests], clock() + WRITE_TIMEOUT_S)
            parts, message = [], b"no server of the cluster has their slots"
            for request in requests:
                node, error = request.part.node, request.exchange.error
                if error is not None:
                    node.failed(error, request.pooled)
                    raise RespError(f"the store at {node.place} failed: {error}")
                stored += int(request.replies.found.sum())
                parts += self._redirected(request)
                message = next((message for _, message in request.replies.errors), message)
            if stored == ids.size:
                return
            if stored + sum(part.rows.size for part in parts) < ids.size:
                break
        raise RespError(f"{ids.size - stored} rows are not stored: {message.decode(errors='replace')}")

    def _node(self, url: str) -> Node:
        with self._lock:
            return self._nodes.setdefault(url, Node(url, self._start_repair, self._login))

    def _discover(self, timeout_s: float) -> None:
        """Updates the routes and removes servers that have left. Raises OSError if no server answers."""
        routes = discover(self.url, self._routes, self._node, timeout_s)
        with self._lock:
            self._routes = routes
            gone = [self._nodes.pop(url) for url in self._nodes.keys() - routes.nodes.keys()]
            self._past_failures += sum(node.failures for node in gone)
        for node in gone:
            node.close()
        if not routes.whole:
            self._start_repair()

    def _start_repair(self) -> None:
        """Starts the repair thread after a failure or a redirect."""
        with self._lock:
            self._repair_again = True
            if self._repairer is None and not self._closed.is_set():
                self._repairer = threading.Thread(target=self._repair, name="polyrec-remote", daemon=True)
                self._repairer.start()

    def _repair(self) -> None:
        wait_s, longest_s = REPAIR_WAIT_S
        while not self._closed.wait(wait_s):
            wait_s = min(2 * wait_s, longest_s)
            with self._lock:
                self._repair_again = False
            with contextlib.suppress(OSError):
                self._discover(max(self.timeout_s, REPAIR_TIMEOUT_S))
            for node in self._routes.nodes.values():
                with contextlib.suppress(OSError):
                    node.revive(max(self.timeout_s, REPAIR_TIMEOUT_S))
            with self._lock:
                if self._routes.whole and not self._repair_again:
                    self._repairer = None
                    return
