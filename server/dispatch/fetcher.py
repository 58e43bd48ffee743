"""Fetches the remote rows of held queries in one thread, with many store requests in flight.

server/dispatch/cold_rows.py queues fetches. The thread sends each request at once and receives replies as
they arrive, whole or in pieces, so that the store's latency does not limit throughput and no fetch needs a
thread of its own. It blocks only to open a connection and to follow the redirects of a cluster.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector
from socket import socket

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.ahead import Fetch, RowsAhead
from polyrec.models.tiers.remote.fetched import FetchedRows, clock
from polyrec.models.tiers.view import View

log = logging.getLogger("polyrec.serving")

MAX_UNDER_WAY = 64
"""Maximum requests in flight, each on its own connection; further ones wait."""

Done = Callable[[FetchedRows | None], None]


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Remote rows to fetch in a view. done: called in the thread with the rows, or None if that failed."""

    ahead: RowsAhead
    view: View
    rows: I64
    done: Done


@dataclass(frozen=True, slots=True, eq=False)
class UnderWay:
    """A fetch in flight. silent: sockets whose replies are still outstanding."""

    wanted: Wanted
    fetch: Fetch
    silent: set[socket] = field(default_factory=set)


class Fetcher:
    """The fetching thread and its queue. Thread-safe."""

    def __init__(self) -> None:
        self._queue: deque[Wanted] = deque()
        self._under_way: set[UnderWay] = set()
        self._selector = DefaultSelector()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._event, EVENT_READ)
        self._closed = False
        # prevents a write to the wake descriptor after `close`, when its number may belong to another file
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="polyrec-cold-remote", daemon=True)
        self._thread.start()

    def fetch(self, ahead: RowsAhead, view: View, rows: I64, done: Done) -> None:
        """Queues a fetch; never blocks. After `close`, `done` gets None. view, rows: see `RowsAhead.send`."""
        with self._closing:
            if not self._closed:
                self._queue.append(Wanted(ahead, view, rows, done))
                os.eventfd_write(self._event, 1)
                return
        done(None)

    def close(self) -> None:
        """Ends the thread after the requests in flight; a second call does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._event, 1)
        self._thread.join()
        self._selector.close()
        os.close(self._event)

    def _run(self) -> None:
        while not self._closed or self._queue or self._under_way:
            for key, _ in self._selector.select(self._timeout_s()):
                if key.data is None:
                    os.eventfd_read(self._event)
                    continue
                sent, request, receiver = key.data  # a failed request has already closed its socket
                while not request.ended and request.read(0.0):
                    pass
                if request.ended:
                    self._forget(sent, receiver)
                    if not sent.silent:
                        self._receive(sent)
            now_s = clock()
            for sent in tuple(self._under_way):
                if sent.fetch.batch.until_s <= now_s:
                    self._receive(sent)
            while self._queue and len(self._under_way) < MAX_UNDER_WAY:
                self._send(self._queue.popleft())

    def _timeout_s(self) -> float | None:
        """Returns the seconds until the first request times out, None if none is in flight."""
        until_s = [sent.fetch.batch.until_s for sent in self._under_way]
        return max(min(until_s) - clock(), 0.0) if until_s else None

    def _send(self, wanted: Wanted) -> None:
        try:
            fetch = wanted.ahead.send(wanted.view, wanted.rows)
        except Exception:
            log.exception("fetching rows failed")
            fetch = None
        if fetch is None:
            wanted.done(None)
            return
        sent = UnderWay(wanted, fetch)
        self._under_way.add(sent)
        for request in fetch.batch.requests:
            receiver = request.receiver
            sent.silent.add(receiver)
            self._selector.register(receiver, EVENT_READ, (sent, request, receiver))
        if not sent.silent:
            self._receive(sent)

    def _forget(self, sent: UnderWay, one: socket) -> None:
        sent.silent.discard(one)
        self._selector.unregister(one)

    def _receive(self, sent: UnderWay) -> None:
        for one in tuple(sent.silent):
            self._forget(sent, one)
        self._under_way.discard(sent)
        layer = None
        try:
            layer = sent.wanted.ahead.receive(sent.fetch)
        except Exception:
            log.exception("fetching rows failed")
        sent.wanted.done(layer)
