"""Fetches the remote rows of held queries on the event loop, with many store requests in flight.

Requests are sent at once, and replies are read as they arrive, whole or in pieces. So the store's latency
does not limit throughput, and no thread competes with the loop for the GIL. What may wait, opening a
connection or following the redirects of a cluster, is left to threads.

The loop watches a single descriptor, an epoll that watches the sockets, and one timer for all timeouts: to
watch a socket for one reply takes the loop seven system calls, and the epoll one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from select import EPOLLIN, EPOLLONESHOT, epoll
from typing import TYPE_CHECKING

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.ahead import Fetch, RowsAhead
from polyrec.models.tiers.remote.fetched import FetchedRows, store_clock
from polyrec.models.tiers.view import View
from polyrec.server.clock import TIMER_S

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
    unanswered: descriptors of the sockets whose replies are still outstanding.
    until_s: its timeout by `store_clock` while replies are outstanding.
    """

    ahead: RowsAhead
    view: View
    rows: I64
    done: Done
    fetch: Fetch | None = None
    unanswered: set[int] = field(default_factory=set)
    until_s: float = math.inf


class Fetcher:
    """Fetches for one dispatcher. Use from its event loop only, `close` also after the loop has ended."""

    def __init__(self) -> None:
        self._queue: deque[FetchInProgress] = deque()
        self._in_flight: set[FetchInProgress] = set()
        self._sending = False
        self._threads = ThreadPoolExecutor(THREADS, "polyrec-cold-remote")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readable = epoll()
        self._awaited: dict[int, tuple[FetchInProgress, ServerRequest]] = {}
        """Outstanding replies by the descriptor of their socket."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        """Time of the timer by `store_clock`; not after any fetch's `until_s`."""
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
            self._loop.add_reader(self._readable.fileno(), self._read_replies)
        self._queue.append(FetchInProgress(ahead, view, rows, done))
        self._send_queued(self._loop)

    def close(self) -> None:
        """Gives up all fetches; a second call does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._readable.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._readable.close()
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
            self._await_reply(one, request)
        if not one.unanswered:
            self._receive(one)
            return
        one.until_s = fetch.batch.until_s
        self._set_timer(one.until_s, loop)

    def _await_reply(self, one: FetchInProgress, request: ServerRequest) -> None:
        """Watches a request's socket until something has arrived."""
        descriptor = request.receiver.fileno()
        one.unanswered.add(descriptor)
        self._awaited[descriptor] = one, request
        try:
            # a socket stays in the epoll after it was read, until it is closed
            self._readable.modify(descriptor, EPOLLIN | EPOLLONESHOT)
        except FileNotFoundError:
            self._readable.register(descriptor, EPOLLIN | EPOLLONESHOT)

    def _read_replies(self) -> None:
        """Reads what has arrived of all replies, and ends the fetches that were waiting for no other."""
        for descriptor, _ in self._readable.poll(0, MAX_IN_FLIGHT):
            awaited = self._awaited.pop(descriptor, None)
            if awaited is None:
                continue  # nobody waits any more, or a fetch that has just ended has closed the fetcher
            one, request = awaited
            one.unanswered.discard(descriptor)
            if not _read_arrived(request):
                self._await_reply(one, request)
            elif not one.unanswered:
                self._receive(one)

    def _set_timer(self, until_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the timer, unless it fires before anyway."""
        if until_s >= self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = until_s
        self._timer = loop.call_later(max(until_s - store_clock(), TIMER_S), self._time_out, loop)

    def _time_out(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes what has arrived for the fetches whose time is over, and waits for nothing else of them."""
        self._timer, self._timer_s = None, math.inf
        over_s = store_clock() + TIMER_S
        for one in [one for one in self._in_flight if one.until_s <= over_s]:
            if one.fetch is None:
                continue  # closed meanwhile
            self._stop_waiting(one)
            for request in one.fetch.batch.requests:
                if not _read_arrived(request):
                    request.fail(TimeoutError("timed out"))
            self._receive(one)
        if not self._closed:
            self._set_timer(min((one.until_s for one in self._in_flight), default=math.inf), loop)

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
        one.until_s = math.inf
        for descriptor in one.unanswered:
            del self._awaited[descriptor]
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
