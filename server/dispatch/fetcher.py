"""Fetches the remote rows of held queries on the event loop, with many store requests in flight.

Requests are sent at once, and replies are read as they arrive, whole or in pieces. So the store's latency
does not limit throughput, and no thread competes with the loop for the GIL. What may wait, opening a
connection or following the redirects of a cluster, is left to threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from socket import socket
from typing import TYPE_CHECKING, TypeVar

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.ahead import Fetch, RowsAhead
from polyrec.models.tiers.remote.fetched import FetchedRows, store_clock
from polyrec.models.tiers.view import View

if TYPE_CHECKING:
    from polyrec.models.tiers.remote.remote import ServerRequest

log = logging.getLogger("polyrec.serving")

MAX_IN_FLIGHT = 64
"""Maximum requests in flight, each on its own connection; further ones wait."""
THREADS = 4
"""Maximum requests that wait for connections or redirects at the same time."""

Done = Callable[[FetchedRows | None], None]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class FetchInProgress:
    """Remote rows to fetch in a view.

    done: called once, on the loop, with the rows, or None if that failed.
    fetch: the sent request, unless a thread has it. unanswered: sockets whose replies are still outstanding.
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
        self._threads = ThreadPoolExecutor(THREADS, "polyrec-cold-remote")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

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
        self._closed = True
        for one in (*self._queue, *self._in_flight):
            if one.fetch is not None:
                self._stop_waiting(one)
                one.ahead.abandon(one.fetch)
            one.done(None)
        self._queue.clear()
        self._in_flight.clear()
        self._threads.shutdown(wait=False)

    def _send_queued(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._queue and len(self._in_flight) < MAX_IN_FLIGHT:
            one = self._queue.popleft()
            self._in_flight.add(one)
            try:
                fetch = one.ahead.send(one.view, one.rows, at_once=True)
            except Exception:
                log.exception("fetching rows failed")
                self._end(one, None)
                continue
            if fetch is not None:
                self._sent(one, fetch, loop)
            else:
                self._run(loop, lambda one=one: one.ahead.send(one.view, one.rows), one, self._sent_late)  # type: ignore[misc]

    def _sent_late(self, one: FetchInProgress, fetch: Fetch | None) -> None:
        """Continues a fetch that a thread has sent."""
        if self._closed:
            if fetch is not None:
                one.ahead.abandon(fetch)
        elif fetch is None:
            self._end(one, None)
        else:
            assert self._loop is not None
            self._sent(one, fetch, self._loop)

    def _sent(self, one: FetchInProgress, fetch: Fetch, loop: asyncio.AbstractEventLoop) -> None:
        one.fetch = fetch
        for request in fetch.batch.requests:
            receiver = request.receiver
            one.unanswered.add(receiver)
            loop.add_reader(receiver, self._read_reply, one, request, receiver)
        one.timer = loop.call_later(max(fetch.batch.until_s - store_clock(), 0.0), self._receive, one)
        if not one.unanswered:
            self._receive(one)

    def _read_reply(self, one: FetchInProgress, request: ServerRequest, receiver: socket) -> None:
        """Reads what has arrived of a request's reply, and ends the fetch if it was the last one."""
        while not request.ended and request.read(0.0):
            pass
        if request.ended:
            # a request that fails closes its receiver, so the socket is passed along
            one.unanswered.discard(receiver)
            assert self._loop is not None
            self._loop.remove_reader(receiver)
            if not one.unanswered:
                self._receive(one)

    def _receive(self, one: FetchInProgress) -> None:
        """Takes the rows that have arrived, after the last reply or at the timeout."""
        fetch = one.fetch
        assert fetch is not None
        self._stop_waiting(one)
        if fetch.batch.redirected:
            assert self._loop is not None
            one.fetch = None
            self._run(self._loop, lambda: one.ahead.receive(fetch), one, self._end)
            return
        fetched = None
        try:
            fetched = one.ahead.receive(fetch)
        except Exception:
            log.exception("fetching rows failed")
        self._end(one, fetched)

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

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], T | None],
        one: FetchInProgress,
        then: Callable[[FetchInProgress, T | None], None],
    ) -> None:
        """Runs work in a thread, then `then` on the loop with its result; None if it failed."""

        def run() -> None:
            result = None
            try:
                result = work()
            except Exception:
                log.exception("fetching rows failed")
            try:
                loop.call_soon_threadsafe(then, one, result)
            except RuntimeError:  # the loop was closed meanwhile
                if isinstance(result, Fetch):
                    one.ahead.abandon(result)

        self._threads.submit(run)
