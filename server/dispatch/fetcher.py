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
from typing import TYPE_CHECKING

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.ahead import Fetch, RowsAhead
from polyrec.models.tiers.remote.fetched import FetchedRows, store_clock
from polyrec.models.tiers.view import View

if TYPE_CHECKING:
    from polyrec.models.tiers.remote.remote import ServerRequest

log = logging.getLogger("polyrec.serving")

MAX_IN_FLIGHT = 64
"""Maximum requests in flight, each on its own connection; further ones wait."""

Done = Callable[[FetchedRows | None], None]


@dataclass(frozen=True, slots=True, eq=False)
class QueuedFetch:
    """Remote rows to fetch in a view. done: called in the thread with the rows, or None if that failed."""

    ahead: RowsAhead
    view: View
    rows: I64
    done: Done


@dataclass(frozen=True, slots=True, eq=False)
class SentFetch:
    """A fetch in flight. unanswered: sockets whose replies are still outstanding."""

    queued: QueuedFetch
    fetch: Fetch
    unanswered: set[socket] = field(default_factory=set)

    @property
    def until_s(self) -> float:
        """Time at which it is given up, on `store_clock`."""
        return self.fetch.batch.until_s


class Fetcher:
    """The fetching thread and its queue. Thread-safe."""

    def __init__(self) -> None:
        self._queue: deque[QueuedFetch] = deque()
        self._in_flight: set[SentFetch] = set()
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
                self._queue.append(QueuedFetch(ahead, view, rows, done))
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
        while not self._closed or self._queue or self._in_flight:
            for key, _ in self._selector.select(self._timeout_s()):
                if key.data is None:
                    os.eventfd_read(self._event)
                else:
                    self._read_reply(*key.data)
            now_s = store_clock()
            for sent in tuple(self._in_flight):
                if sent.until_s <= now_s:
                    self._end(sent)
            while self._queue and len(self._in_flight) < MAX_IN_FLIGHT:
                self._send(self._queue.popleft())

    def _timeout_s(self) -> float | None:
        """Returns the seconds until the first request times out, None if none is in flight."""
        until_s = [sent.until_s for sent in self._in_flight]
        return max(min(until_s) - store_clock(), 0.0) if until_s else None

    def _send(self, queued: QueuedFetch) -> None:
        try:
            fetch = queued.ahead.send(queued.view, queued.rows)
        except Exception:
            log.exception("fetching rows failed")
            fetch = None
        if fetch is None:
            queued.done(None)
            return
        sent = SentFetch(queued, fetch)
        self._in_flight.add(sent)
        for request in fetch.batch.requests:
            sent.unanswered.add(request.receiver)
            # a request that fails closes its receiver, so the socket is passed along to be unregistered
            self._selector.register(request.receiver, EVENT_READ, (sent, request, request.receiver))
        if not sent.unanswered:
            self._end(sent)

    def _read_reply(self, sent: SentFetch, request: ServerRequest, receiver: socket) -> None:
        """Reads what has arrived of a request's reply, and ends the fetch if it was the last one."""
        while not request.ended and request.read(0.0):
            pass
        if request.ended:
            self._forget(sent, receiver)
            if not sent.unanswered:
                self._end(sent)

    def _forget(self, sent: SentFetch, receiver: socket) -> None:
        sent.unanswered.discard(receiver)
        self._selector.unregister(receiver)

    def _end(self, sent: SentFetch) -> None:
        """Ends a fetch, whether or not all replies have arrived, and passes its rows on."""
        for receiver in tuple(sent.unanswered):
            self._forget(sent, receiver)
        self._in_flight.discard(sent)
        fetched = None
        try:
            fetched = sent.queued.ahead.receive(sent.fetch)
        except Exception:
            log.exception("fetching rows failed")
        sent.queued.done(fetched)
