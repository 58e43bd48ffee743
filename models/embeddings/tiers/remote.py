"""The remote tier: rows beyond the machine, in a Redis that may be there already.

A row's key is `prefix`, its table and its stable id in twelve digits, `polyrec:item:000000000042`, its
value the row's bytes as the bundle stores them; so a store survives new orders of the rows. A batch is one
pipelined request, one MGET a table. Where the store does not answer in time, or lacks a row, the row is the
table's out-of-vocabulary row, counted, and the answer says that its quality is reduced. A store that has
failed is left alone by requests and asked again from a thread until it answers. Every failure starts a new
generation of connections: what befalls one of an older generation says nothing about the store of now.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.batch import I64
from models.embeddings.tiers.resp import Link, RespError, command, keys
from models.embeddings.tiers.slab import Bytes

log = logging.getLogger("polyrec.tiers")

MEND_S = (0.05, 1.0)
"""A lost store is asked again after the first, then after twice as long each time, up to the second."""
WRITE_TIMEOUT_S = 10.0
WRITTEN_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connection and the generation that it belongs to."""

    link: Link
    generation: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A request on its way. order: the rows by table; counts: of each table asked; over: None: it failed."""

    tables: I64
    order: I64
    counts: tuple[int, ...]
    over: Dialled | None


class RemoteTier:
    """Rows by (table, stable id) in a Redis. Thread-safe.

    tables: names. fallback: uint8 [tables, bytes of a row], the out-of-vocabulary row of each.
    """

    def __init__(
        self,
        url: str,
        tables: Sequence[str],
        fallback: Bytes,
        timeout_s: float = 0.02,
        prefix: str = "polyrec:",
    ) -> None:
        self.url, self.timeout_s = url, timeout_s
        self.fallback = fallback
        self._prefixes = [f"{prefix}{table}:" for table in tables]
        self._lock = threading.Lock()
        self._idle: list[Dialled] = []
        self._generation = 0
        self._closed = threading.Event()
        self._mender: threading.Thread | None = None
        self.failures = 0
        self._up = True
        # one that does not answer is noted, and sought from now on
        with contextlib.suppress(OSError):
            self._give_back(self._dial(0, WRITE_TIMEOUT_S))

    @property
    def up(self) -> bool:
        """Whether the store answered when it was last asked."""
        return self._up

    def ask(self, tables: I64, ids: I64) -> Asked:
        """Sends off a request for rows; `receive` must follow. tables, ids: int64 [n], ids >= 0."""
        order = np.argsort(tables, kind="stable")
        present, counts = np.unique(tables, return_counts=True)
        over = self._take()
        if over is not None:
            grouped = np.split(ids[order], np.cumsum(counts)[:-1])
            parts = [
                command(b"MGET", keys(self._prefixes[t], own))
                for t, own in zip(present.tolist(), grouped, strict=True)
            ]
            try:
                over.link.send(b"".join(parts), self.timeout_s)
            except OSError as e:
                self._failed(e, over)
                over = None
        return Asked(tables, order, tuple(counts.tolist()), over)

    def receive(self, asked: Asked) -> tuple[Bytes, NDArray[np.bool_]]:
        """(rows uint8 [n, bytes], which of them the store gave [n]), in the order of the asking."""
        rows = self.fallback[asked.tables]
        found = np.zeros(len(rows), bool)
        over = asked.over
        if over is None:
            return rows, found
        got, there = np.empty_like(rows), np.zeros(len(rows), bool)
        start = place = 0
        try:
            for count in asked.counts:
                part = slice(start, start + count)
                place = over.link.rows(got[part], there[part], place)
                start += count
        except (OSError, ValueError) as e:
            self._failed(e, over)
            return rows, found
        self._give_back(over)
        found[asked.order] = there
        rows[asked.order[there]] = got[there]
        return rows, found

    def abandon(self, asked: Asked) -> None:
        """Instead of `receive`, if nobody wants the rows any more."""
        if asked.over is not None:
            asked.over.link.close()

    def write(self, tables: I64, ids: I64, values: Bytes) -> None:
        """Stores rows. values: uint8 [n, bytes of a row]. Raises OSError; part may be written then."""
        with self._lock:
            up, generation = self._up, self._generation
        if not up:
            raise RespError(f"the store at {_place(self.url)} does not answer")
        # a connection of its own: one that is kept may be of a store that has restarted since
        over = self._dial(generation, self.timeout_s)
        try:
            for table in np.unique(tables).tolist():
                own = np.flatnonzero(tables == table)
                for start in range(0, own.size, WRITTEN_AT_ONCE):
                    part = own[start : start + WRITTEN_AT_ONCE]
                    key = keys(self._prefixes[table], ids[part])
                    over.link.send(command(b"MSET", key, values[part]), WRITE_TIMEOUT_S)
                    over.link.line()
        except OSError as e:
            self._failed(e, over)
            raise
        self._give_back(over)

    def close(self) -> None:
        self._closed.set()
        mender = self._mender
        if mender is not None:
            mender.join()
        for idle in self._idle:
            idle.link.close()

    def _take(self) -> Dialled | None:
        with self._lock:
            if not self._up:
                return None
            if self._idle:
                return self._idle.pop()
            generation = self._generation
        try:
            return self._dial(generation, self.timeout_s)
        except OSError:
            return None

    def _dial(self, generation: int, timeout_s: float) -> Dialled:
        """A connection of a generation. Raises OSError, noted as that generation's failure."""
        try:
            return Dialled(Link(self.url, timeout_s), generation)
        except OSError as e:
            self._lost(e, generation)
            raise

    def _give_back(self, over: Dialled) -> None:
        with self._lock:
            if over.generation == self._generation:
                self._idle.append(over)
                return
        over.link.close()

    def _failed(self, error: Exception, over: Dialled) -> None:
        over.link.close()
        self._lost(error, over.generation)

    def _lost(self, error: Exception, generation: int) -> None:
        with self._lock:
            self.failures += 1
            if generation != self._generation:
                return
            log.warning("the remote store at %s failed: %s", _place(self.url), error)
            self._generation += 1
            self._up = False
            for idle in self._idle:
                idle.link.close()
            self._idle.clear()
            if not self._closed.is_set():
                self._mender = threading.Thread(target=self._mend, name="polyrec-remote", daemon=True)
                self._mender.start()

    def _mend(self) -> None:
        wait_s, longest_s = MEND_S
        while not self._closed.wait(wait_s):
            wait_s = min(2 * wait_s, longest_s)
            try:
                link = Link(self.url, max(self.timeout_s, 1.0))
            except OSError:
                continue
            with self._lock:
                self._idle.append(Dialled(link, self._generation))
                self._up = True
            log.info("the remote store at %s answers again", _place(self.url))
            return


def _place(url: str) -> str:
    """A URL without the password."""
    return url.rpartition("@")[2] or url
