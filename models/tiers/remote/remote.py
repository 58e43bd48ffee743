"""The remote tier: rows beyond the machine, in a Redis or a Redis Cluster that may be there already.

A row's key is `prefix`, its table and its stable id in twelve digits, `polyrec:item:000000000042`, its
value the row's bytes as the bundle stores them; so a store survives new orders of the rows. A batch is one
pipelined request to each server that has rows of it, all on their way at once within one time-out: one MGET
a table where there is one server, GETs in a cluster, which refuses an MGET of several slots. Rows that a
server says are elsewhere by now (MOVED, ASK) are asked for there in what is left of the time.

Where a server does not answer in time, or lacks a row, the row is the table's out-of-vocabulary row, counted,
and the answer says that its quality is degraded. A server that has failed is left alone by requests, and
asked again from a thread until it answers and every slot is served.
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
"""What is amiss is looked into after the first, then after twice as long each time, up to the second."""
REPAIR_TIMEOUT_S = 1.0
WRITE_TIMEOUT_S = 10.0
WRITE_ROWS = 4096
MAX_REDIRECTS = 4
"""How often rows to be written are sent on to where the last server said."""
LEAST_S = 0.001
"""What a new connection is given when the time is nearly over."""
ELSEWHERE = re.compile(rb"(MOVED|ASK) \d+ (.*):(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class NodeRows:
    """What one server has of a batch, or is said to have. rows: places in the batch, int64 [n], by table.
    asking: it is only about to get these rows' slot."""

    node: Node
    rows: I64
    asking: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class NodeRequest:
    """A part on its way."""

    part: NodeRows
    pooled: PooledLink
    exchange: Exchange
    taken: RowReplies


@dataclass(frozen=True, slots=True, eq=False)
class PendingBatch:
    """A batch on its way. until_s: by `clock`, when it goes on without what has not come."""

    tables: I64
    ids: I64
    requests: list[NodeRequest]
    until_s: float


class RemoteTier:
    """Rows by (table, stable id) in a store. Thread-safe.

    url: of the server, or of one in the cluster. tables: names. fallback: uint8 [tables, bytes of a row],
    the out-of-vocabulary row of each. login: None for what the URL says; it is every server's of the cluster.
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
        self._forgotten = 0
        self._closed = threading.Event()
        self._repairer: threading.Thread | None = None
        self._again = False
        seed = self._node(url)
        self._routes = Routes({url: seed})
        # one that does not answer is noted, and sought from now on
        with contextlib.suppress(OSError):
            seed.give_back(seed.dial(WRITE_TIMEOUT_S))
            self._discover(WRITE_TIMEOUT_S)

    @property
    def up(self) -> bool:
        """Whether every row has a server, and all answered when they were last asked."""
        return self._routes.whole

    @property
    def failures(self) -> int:
        """Connections that failed, so far."""
        with self._lock:
            return self._forgotten + sum(node.failures for node in self._nodes.values())

    def send(self, tables: I64, ids: I64) -> PendingBatch:
        """Sends off a request for rows; `receive` must follow. tables, ids: int64 [n], ids >= 0.

        Waits for new connections, where some are needed, at most as long as for answers.
        """
        routes = self._routes
        dialled = self._with_links(self._parts(routes, tables, ids), clock() + self.timeout_s)
        until_s = clock() + self.timeout_s
        arrays = routes.of_slot is None
        requests = [self._get(part, pooled, tables, ids, arrays) for part, pooled in dialled]
        return PendingBatch(tables, ids, requests, until_s)

    def receive(self, asked: PendingBatch) -> tuple[Bytes, NDArray[np.bool_]]:
        """(rows uint8 [n, bytes], which of them the store gave [n]), in the order of the asking."""
        rows = self.fallback[asked.tables]
        found = np.zeros(len(rows), bool)
        elsewhere = self._collect(asked.requests, asked.until_s, rows, found)
        # sent on once: what is nowhere to be found by then falls back
        dialled = self._with_links(elsewhere, asked.until_s)
        followed = [self._get(part, pooled, asked.tables, asked.ids) for part, pooled in dialled]
        self._collect(followed, asked.until_s, rows, found)
        return rows, found

    def abandon(self, asked: PendingBatch) -> None:
        """Instead of `receive`, if nobody wants the rows any more."""
        for request in asked.requests:
            request.pooled.link.close()

    def write(self, tables: I64, ids: I64, values: Bytes) -> None:
        """Stores rows. values: uint8 [n, bytes of a row]. Raises OSError; some may be written then."""
        # connections of its own: one that is kept may be of a server that has restarted since
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
        mender = self._repairer
        if mender is not None:
            mender.join()
        for node in self._nodes.values():
            node.close()

    def _parts(self, routes: Routes, tables: I64, ids: I64) -> list[NodeRows]:
        """Who has which rows; those that nobody serves are in none."""
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
        """A connection for each part; without those whose server does not answer."""
        found = []
        for part in parts:
            pooled = part.node.take(max(until_s - clock(), LEAST_S))
            if pooled is not None:
                found.append((part, pooled))
        return found

    def _get(
        self, part: NodeRows, pooled: PooledLink, tables: I64, ids: I64, arrays: bool = False
    ) -> NodeRequest:
        """Sends off the request of a part's rows. arrays: as MGETs."""
        taken = RowReplies.nothing(part.rows.size, self.fallback.shape[1])
        counts, keyed = self._keyed(tables[part.rows], ids[part.rows])
        if arrays:
            data = b"".join(command(b"MGET", key) for key in keyed)
            reading = pooled.link.rows_of_arrays(taken, counts)
        else:
            data = b"".join(commands(b"GET", key, asking=part.asking) for key in keyed)
            reading = pooled.link.rows(taken, part.asking)
        return NodeRequest(part, pooled, Exchange(pooled.link, data, reading), taken)

    def _set(self, part: NodeRows, pooled: PooledLink, tables: I64, ids: I64, values: Bytes) -> NodeRequest:
        """Sends off what a part's rows are to be."""
        taken = RowReplies.nothing(part.rows.size, 0)
        counts, keyed = self._keyed(tables[part.rows], ids[part.rows])
        split = np.split(values[part.rows], np.cumsum(counts)[:-1])
        data = b"".join(
            commands(b"SET", key, own, asking=part.asking) for key, own in zip(keyed, split, strict=True)
        )
        reading = pooled.link.acknowledged(taken, part.asking)
        return NodeRequest(part, pooled, Exchange(pooled.link, data, reading), taken)

    def _keyed(self, tables: I64, ids: I64) -> tuple[list[int], list[Bytes]]:
        """How many rows of each table that there is, and their keys. tables: in order."""
        present, counts = np.unique(tables, return_counts=True)
        split = np.split(ids, np.cumsum(counts)[:-1])
        return counts.tolist(), [
            keys(self._prefixes[table], own) for table, own in zip(present.tolist(), split, strict=True)
        ]

    def _collect(
        self, requests: Sequence[NodeRequest], until_s: float, rows: Bytes, found: NDArray[np.bool_]
    ) -> list[NodeRows]:
        """Puts what comes in time into `rows` and `found`; gives what is said to be elsewhere."""
        finish([request.exchange for request in requests], until_s)
        elsewhere: list[NodeRows] = []
        for request in requests:
            taken, node, error = request.taken, request.part.node, request.exchange.error
            there = request.part.rows[taken.found]
            rows[there] = taken.values[taken.found]
            found[there] = True
            elsewhere += self._redirected(request)
            if error is None:
                node.give_back(request.pooled)
            else:
                node.failed(error, request.pooled)
        return elsewhere

    def _redirected(self, request: NodeRequest) -> list[NodeRows]:
        """The rows of a request that its server said are elsewhere, by where."""
        where: dict[tuple[str, bool], list[int]] = {}
        for place, said in request.taken.errors:
            told = ELSEWHERE.fullmatch(said)
            if told is not None:
                word, host, port = told.groups()
                address = host.decode() or host_of(request.part.node.url), int(port)
                where.setdefault((url_of(self.url, address), word == b"ASK"), []).append(place)
            if told is None or told[1] == b"MOVED":
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
                whose = part.node, part.asking
                if whose not in links:
                    links[whose] = part.node.dial(REPAIR_TIMEOUT_S)
                requests.append(self._set(part, links[whose], tables, ids, values))
            finish([request.exchange for request in requests], clock() + WRITE_TIMEOUT_S)
            parts, said = [], b"no server of the cluster has their slots"
            for request in requests:
                node, error = request.part.node, request.exchange.error
                if error is not None:
                    node.failed(error, request.pooled)
                    raise RespError(f"the store at {node.place} failed: {error}")
                stored += int(request.taken.found.sum())
                parts += self._redirected(request)
                said = next((said for _, said in request.taken.errors), said)
            if stored == ids.size:
                return
            if stored + sum(part.rows.size for part in parts) < ids.size:
                break
        raise RespError(f"{ids.size - stored} rows are not stored: {said.decode(errors='replace')}")

    def _node(self, url: str) -> Node:
        with self._lock:
            return self._nodes.setdefault(url, Node(url, self._start_repair, self._login))

    def _discover(self, timeout_s: float) -> None:
        """Asks for the map, and forgets servers that are not in it. Raises OSError if nobody can tell."""
        routes = discover(self.url, self._routes, self._node, timeout_s)
        with self._lock:
            self._routes = routes
            gone = [self._nodes.pop(url) for url in self._nodes.keys() - routes.nodes.keys()]
            self._forgotten += sum(node.failures for node in gone)
        for node in gone:
            node.close()
        if not routes.whole:
            self._start_repair()

    def _start_repair(self) -> None:
        """A server is lost, or rows are not where they are looked for: sees to it in a thread."""
        with self._lock:
            self._again = True
            if self._repairer is None and not self._closed.is_set():
                self._repairer = threading.Thread(target=self._repair, name="polyrec-remote", daemon=True)
                self._repairer.start()

    def _repair(self) -> None:
        wait_s, longest_s = REPAIR_WAIT_S
        while not self._closed.wait(wait_s):
            wait_s = min(2 * wait_s, longest_s)
            with self._lock:
                self._again = False
            with contextlib.suppress(OSError):
                self._discover(max(self.timeout_s, REPAIR_TIMEOUT_S))
            for node in self._routes.nodes.values():
                with contextlib.suppress(OSError):
                    node.revive(max(self.timeout_s, REPAIR_TIMEOUT_S))
            with self._lock:
                if self._routes.whole and not self._again:
                    self._repairer = None
                    return
