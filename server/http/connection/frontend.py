"""The state shared by all HTTP connections of one server: application, limits, turns and counters.

server/app/run.py creates one `HttpFrontend` and every connection.py `Connection` refers to it. Instead of a
timer per connection, one periodic sweep enforces the time limits; a connection just stores its deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from resource import RUSAGE_THREAD, getrusage
from typing import Any, Protocol

from starlette.types import ASGIApp

from polyrec.planner.routing.admission.arrival import Arrival, ArrivalTimes
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.clock import clock
from polyrec.server.http.connection.access_log import AccessLog
from polyrec.server.http.connection.hot_endpoint import HotEndpoint
from polyrec.server.http.connection.limits import ConnectionLimits, Networks
from polyrec.server.request_ids import log_extra

log = logging.getLogger("polyrec.http")

TIMEOUTS_PER_STEP = 16
"""Connections that the sweep ends before it yields to the event loop."""
MAX_EVICTION_CANDIDATES = 64
"""Maximum connections examined, per network and overall, to find one to close in favor of a new one."""


class SweptConnection(Protocol):
    """A connection as the frontend sees it.

    deadline_s: time at which its state times out, in seconds on `clock`.
    network: the client's network (`access.rates.network_of`).
    idle: whether no request has begun to arrive.
    waiting: whether a request waits for its answer.
    awaits_turn: whether the connection is queued for `advance`.
    """

    deadline_s: float
    network: str
    awaits_turn: bool

    @property
    def idle(self) -> bool: ...

    @property
    def waiting(self) -> bool: ...

    def time_out(self) -> None: ...

    def advance(self) -> None: ...

    def abort(self) -> None: ...

    def stop(self) -> None: ...


class ServerState(Protocol):
    """The state that uvicorn passes to every connection, reduced to the attributes used here."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    default_headers: list[tuple[bytes, bytes]]


class HttpFrontend:
    """The state shared by all connections of one server.

    app: ASGI application for all requests except POSTs to `hot`.
    hot: endpoints answered without ASGI, by raw path.
    access_log: None if it is off.
    """

    def __init__(
        self,
        app: ASGIApp,
        hot: Mapping[bytes, HotEndpoint],
        engine: Engine,
        limits: ConnectionLimits | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        self.app = app
        self.hot = hot
        self.engine = engine
        self.limits = limits or ConnectionLimits()
        self.access_log = access_log
        self.buffered = 0
        self.connections: dict[SweptConnection, None] = {}
        self._networks = Networks[SweptConnection]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = False
        self._arrivals = ArrivalTimes()
        self._sleeps = -1
        self._logged: dict[str, tuple[float, int]] = {}
        self._turns: dict[str, deque[tuple[Callable[[], None], int]]] = {}
        """Waiting work and the bytes that it holds, by network; the first network is next."""

    @property
    def full(self) -> bool:
        """Whether unfinished requests exceed their memory limit (`ConnectionLimits.buffered_bytes`)."""
        return self.buffered > self.limits.buffered_bytes

    @property
    def draining(self) -> bool:
        """Whether connections should close after their next answer, as the server drains."""
        return self.engine.state is LifecycleState.DRAINING

    def begin_request(self) -> None:
        """Counts a request whose head was read."""
        self._begin_reading()
        self._arrivals.count_request()

    def arrival(self, answered_s: float = 0.0) -> Arrival:
        """Estimates when the bytes being read arrived, in seconds on `clock`.

        answered_s: time of the connection's last answer if the client waited for it before sending, else 0.
        """
        self._begin_reading()
        return self._arrivals.arrival(answered_s)

    def _begin_reading(self) -> None:
        """Records that the event loop begins to read sockets; once per loop iteration."""
        if not self._reading:
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.get_running_loop()
            self._reading = True
            loop.call_soon(self._end_reading)  # runs after all readable sockets of this iteration
            now_s = clock()
            # a voluntary context switch means the loop slept; preemption is involuntary
            sleeps = getrusage(RUSAGE_THREAD).ru_nvcsw
            self._arrivals.begin_reading(now_s, slept=sleeps != self._sleeps)
            self._sleeps = sleeps

    def _end_reading(self) -> None:
        self._reading = False

    def join(self, connection: SweptConnection) -> bool:
        """Adds a new connection; returns False if the limit is reached.

        At the limit, closes another connection in favor of the new one if `_find_evictable` finds one.
        """
        if len(self.connections) >= self.limits.connections:
            other = self._find_evictable(connection.network)
            if other is None:
                return False
            what = "an idle" if other.idle else "an unfinished"
            self.exceeded("connections", f"{what} connection was closed in favor of a new one")
            other.abort()
            self.leave(other)
        self.connections[connection] = None
        self._networks.add(connection, connection.network)
        return True

    def leave(self, connection: SweptConnection) -> None:
        """Removes a connection; does nothing if it was removed already."""
        self.connections.pop(connection, None)
        self._networks.discard(connection, connection.network)

    def _find_evictable(self, network: str) -> SweptConnection | None:
        """Returns the connection to close in favor of a new one from `network`, None if there is none.

        Takes it from the network with the most connections, even one that is slowly sending a request; else
        an idle one from a network with at least as many. So a client with thousands keeps out only itself.
        """
        size = self._networks.size
        count = size(network)
        largest = tuple(islice(self._networks.largest(), MAX_EVICTION_CANDIDATES))
        if largest and size(largest[0].network) > count + 1:
            for other in (*(each for each in largest if each.idle), *largest):
                if not other.waiting:
                    return other
        examined = (*largest, *islice(self.connections, MAX_EVICTION_CANDIDATES))
        for other in examined:
            if other.idle and size(other.network) >= count:
                return other
        for other in examined:  # examine others next time, or busy ones would keep out all new ones
            self.connections[other] = self.connections.pop(other)
            self._networks.move_to_end(other, other.network)
        return None

    def stop(self) -> None:
        """Ends all connections except those with a request in progress; called when the server stops."""
        for connection in tuple(self.connections):
            connection.stop()

    def queue_turn(self, connection: SweptConnection) -> None:
        """Queues a connection that has more to read."""
        if not connection.awaits_turn:
            connection.awaits_turn = True
            self.in_turn(connection.network, partial(self._advance, connection))

    def _advance(self, connection: SweptConnection) -> None:
        connection.awaits_turn = False
        connection.advance()

    def in_turn(self, network: str, work: Callable[[], None], held_bytes: int = 0) -> None:
        """Queues work; one piece is done per event loop iteration.

        For all work whose time a client can choose. Between two pieces the loop serves small requests, which
        otherwise would wait for the large ones of all connections. Networks take turns, so that a client with
        thousands of connections delays a health check by one piece.

        network: the client's network (`access.rates.network_of`).
        held_bytes: memory that the work holds until it is done.
        """
        self.buffered += held_bytes
        if not self._turns:
            asyncio.get_running_loop().call_soon(self._give_turn)
        self._turns.setdefault(network, deque()).append((work, held_bytes))

    def _give_turn(self) -> None:
        network, waiting = next(iter(self._turns.items()))
        work, held_bytes = waiting.popleft()
        try:
            work()
        finally:
            self.buffered -= held_bytes
            del self._turns[network]
            if waiting:
                self._turns[network] = waiting
            if self._turns:
                asyncio.get_running_loop().call_soon(self._give_turn)

    def count(self, limit: str) -> None:
        """Counts one excess of a limit."""
        self.engine.metrics.limited.labels(limit).inc()

    def exceeded(self, limit: str, what: str, request_id: bytes = b"") -> None:
        """Counts one excess of a limit and logs it, at most one line per second and limit.

        request_id: id of the request, empty for a connection.
        """
        self.count(limit)
        now_s = clock()
        last_s, suppressed = self._logged.get(limit, (-1.0, 0))
        if last_s >= 0 and now_s - last_s < 1:
            self._logged[limit] = last_s, suppressed + 1
            return
        more = f" (and {suppressed} more since the last such line)" if suppressed else ""
        log.warning("HTTP limit %s: %s%s", limit, what, more, extra=log_extra(request_id))
        self._logged[limit] = now_s, 0

    async def sweep(self) -> None:
        """Periodically times out connections past their deadline and sets the gauges, until canceled."""
        while True:
            await asyncio.sleep(self.limits.sweep_s)
            now_s = clock()
            ended = 0
            for connection in tuple(self.connections):
                if connection.deadline_s <= now_s:
                    ended += 1
                    if ended % TIMEOUTS_PER_STEP == 0:
                        await asyncio.sleep(0)
                    try:
                        connection.time_out()
                    except Exception:
                        log.exception("a connection could not be ended")
            self.engine.metrics.connections.only.set(len(self.connections))
            self.engine.metrics.buffered_bytes.only.set(self.buffered)
