"""Fetches the remote rows of held queries on the event loop, with many store requests in flight.

Requests are sent at once, and replies are read as they arrive, whole or in pieces. So the store's latency
does not limit throughput, and no thread competes with the loop for the GIL. What may wait, opening a
connection or following the redirects of a cluster, is left to threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from socket import socket
from typing import TYPE_CHECKING

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.ahead import Fetch, RowsAhead
from polyrec.models.tiers.remote.fetched import FetchedRows, store_clock
from polyrec.models.tiers.view import View

if TYPE_CHECKING:
    from polyrec.models.tiers.remote.request import ServerRequest

log = logging.getLogger("polyrec.serving")

MAX_IN_FLIGHT = 64
"""Maximum requests in flight, each on its own connection; further ones wait."""
THREADS = 4
"""Maximum requests that wait for connections or redirects at the same time."""

Done = Callable[[FetchedRows | None], None]


@dataclass(slots=True, eq=False)
class FetchInProgress:
    """Remote rows to fetch in a view.

    done: called once, on the loop, with the rows, or None if that failed.
    fetch: the sent request, which `Fetcher.close` abandons; None while a thread receives it.
    unanswered: sockets whose replies are still outstanding.
    timer: ends it at its timeout.
    """

    ahead: RowsAhead
    view: View
    rows: I64
    done: Done
    fetch: Fetch | None = None
    unanswered: set[socket] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class Fetcher:
    """Fetches for one dispatcher. Use from its event loop only, `close` also after the loop has ended."""

    def __init__(self) -> None:
        self._queue: deque[FetchInProgress] = deque()
        self._in_flight: set[FetchInProgress] = set()
        self._sending = False
        self._threads = ThreadPoolExecutor(THREADS, "polyrec-cold-remote")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # decides whether `close` or a thread ends what that thread has sent
        self._closing = threading.Lock()

    def fetch(self, ahead: RowsAhead, view: View, rows: I64, done: Done) -> None:
        """Starts a fetch; never blocks. After `close`, `done` gets None. view, rows: see `RowsAhead.send`."""
        if self._closed:
            done(None)
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._queue.append(FetchInProgress(ahead, view, rows, done))
        self._send_queued(self._loop)

    def close(self) -> None:
        """Gives up all fetches; a second call does nothing."""
        with self._closing:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        given_up = (*self._queue, *self._in_flight)
        self._queue.clear()
        self._in_flight.clear()
        for one in given_up:
            self._stop_waiting(one)
            with self._closing:
                fetch, one.fetch = one.fetch, None
            if fetch is not None:
                one.ahead.abandon(fetch)
            one.done(None)

    def _send_queued(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._sending:
            return  # called by `_end` of a fetch that ended at once; the loop below goes on
        self._sending = True
        try:
            while self._queue and len(self._in_flight) < MAX_IN_FLIGHT and not self._closed:
                one = self._queue.popleft()
                self._in_flight.add(one)
                self._send(one, loop)
        finally:
            self._sending = False

    def _send(self, one: FetchInProgress, loop: asyncio.AbstractEventLoop) -> None:
        try:
            one.fetch = one.ahead.send(one.view, one.rows, at_once=True)
        except Exception:
            log.exception("fetching rows failed")
            self._end(one, None)
            return
        if one.fetch is None:
            self._threads.submit(self._send_late, one, loop)
        else:
            self._sent(one, loop)

    def _send_late(self, one: FetchInProgress, loop: asyncio.AbstractEventLoop) -> None:
        """Sends a request that may have to wait; runs in a thread."""
        if self._closed:
            return
        fetch = None
        try:
            fetch = one.ahead.send(one.view, one.rows)
        except Exception:
            log.exception("fetching rows failed")
        with self._closing:
            closed = self._closed
            if not closed:
                one.fetch = fetch
        if not closed:
            with suppress(RuntimeError):  # the loop was closed meanwhile, and `close` follows
                loop.call_soon_threadsafe(self._sent, one, loop)
        elif fetch is not None:
            one.ahead.abandon(fetch)

    def _sent(self, one: FetchInProgress, loop: asyncio.AbstractEventLoop) -> None:
        """Waits for the replies of a sent request; ends the fetch if none was sent."""
        fetch = one.fetch
        if fetch is None:
            self._end(one, None)
            return
        for request in fetch.batch.requests:
            receiver = request.receiver
            one.unanswered.add(receiver)
            loop.add_reader(receiver, self._read_reply, one, request, receiver)
        one.timer = loop.call_later(max(fetch.batch.until_s - store_clock(), 0.0), self._time_out, one)
        if not one.unanswered:
            self._receive(one)

    def _read_reply(self, one: FetchInProgress, request: ServerRequest, receiver: socket) -> None:
        """Reads what has arrived of a request's reply, and ends the fetch if it was the last one."""
        if _read_arrived(request):
            # a request that fails closes its receiver, so the socket is passed along
            one.unanswered.discard(receiver)
            assert self._loop is not None
            self._loop.remove_reader(receiver)
            if not one.unanswered:
                self._receive(one)

    def _time_out(self, one: FetchInProgress) -> None:
        """Takes what has arrived, and waits for nothing else."""
        self._stop_waiting(one)
        assert one.fetch is not None
        for request in one.fetch.batch.requests:
            if not _read_arrived(request):
                request.fail(TimeoutError("timed out"))
        self._receive(one)

    def _receive(self, one: FetchInProgress) -> None:
        """Takes the rows once all requests have ended."""
        self._stop_waiting(one)
        assert one.fetch is not None
        if one.fetch.batch.redirected:
            assert self._loop is not None
            self._threads.submit(self._receive_late, one, self._loop)
            return
        fetch, one.fetch = one.fetch, None
        self._end(one, _received(one.ahead, fetch))

    def _receive_late(self, one: FetchInProgress, loop: asyncio.AbstractEventLoop) -> None:
        """Follows redirects, for which it waits; runs in a thread."""
        with self._closing:
            fetch, one.fetch = one.fetch, None
        if fetch is None:
            return  # `close` has abandoned it
        fetched = _received(one.ahead, fetch)
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(self._end, one, fetched)

    def _end(self, one: FetchInProgress, fetched: FetchedRows | None) -> None:
        """Passes the rows on, and sends a waiting request."""
        if self._closed:
            return
        self._in_flight.discard(one)
        one.done(fetched)
        if self._queue and self._loop is not None:
            self._send_queued(self._loop)

    def _stop_waiting(self, one: FetchInProgress) -> None:
        """Stops waiting for replies and for the timeout."""
        if one.timer is not None:
            one.timer.cancel()
        loop = self._loop
        if loop is not None and not loop.is_closed():
            for receiver in one.unanswered:
                loop.remove_reader(receiver)
        one.unanswered.clear()


def _read_arrived(request: ServerRequest) -> bool:
    """Reads what has arrived of a request's reply; returns whether the request has ended."""
    while not request.ended and request.read(0.0):
        pass
    return request.ended


def _received(ahead: RowsAhead, fetch: Fetch) -> FetchedRows | None:
    """Returns the rows of a request; None if that failed."""
    try:
        return ahead.receive(fetch)
    except Exception:
        log.exception("fetching rows failed")
        return None
