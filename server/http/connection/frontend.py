"""Shared state of all connections of one server: the application, limits, turns, arrival times and counters.

One periodic sweep enforces the time limits instead of a timer for each connection: a connection only stores
the deadline of its current state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
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
"""Connections that the sweep ends before others get their turn."""
MAX_EVICTION_CANDIDATES = 64
"""Maximum connections examined, of one network and of all, to find one to close in favor of a new one."""


class SweptConnection(Protocol):
    """A connection as the frontend sees it.

    deadline_s: when its state times out, in seconds on `clock`. network: of its client (`rates.network_of`).
    idle: no request has begun to arrive. waiting: a request waits for its answer. awaits_turn: it is queued
    for `advance`.
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
    """The attributes used here of the state that uvicorn passes to every connection of a server."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    default_headers: list[tuple[bytes, bytes]]


class HttpFrontend:
    """The state shared by all connections of one server.

    app: answers all requests but POSTs to `hot`. hot: endpoints answered without ASGI, by raw path.
    access_log: None: there is none.
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
        self._turns: deque[SweptConnection] = deque()

    @property
    def full(self) -> bool:
        """Whether unfinished requests exceed their memory limit (`ConnectionLimits.buffered_bytes`)."""
        return self.buffered > self.limits.buffered_bytes

    @property
    def draining(self) -> bool:
        """Whether connections should close after their next answer."""
        return self.engine.state is LifecycleState.DRAINING

    def begin_request(self) -> None:
        """Counts a request whose head is being read."""
        self._begin_reading()
        self._arrivals.begin()

    def arrival(self, answered_s: float = 0.0) -> Arrival:
        """Estimates when the bytes being read arrived, in seconds on `clock`.

        answered_s: when their connection wrote its last answer, for which the client waited.
        """
        self._begin_reading()
        return self._arrivals.arrival(answered_s)

    def _begin_reading(self) -> None:
        """Records that the loop begins to read; once in each of its iterations."""
        if not self._reading:
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.get_running_loop()
            self._reading = True
            loop.call_soon(self._end_reading)  # runs once all readable sockets of this iteration were read
            now_s = clock()
            # a voluntary context switch is a sleep; losing the core to another process is not
            sleeps = getrusage(RUSAGE_THREAD).ru_nvcsw
            self._arrivals.look(now_s, slept=sleeps != self._sleeps)
            self._sleeps = sleeps

    def _end_reading(self) -> None:
        self._reading = False

    def join(self, connection: SweptConnection) -> bool:
        """Adds a new connection; false if the limit is reached.

        At the limit, another one is closed in favor of the new one, if there is one that gives way.
        """
        if len(self.connections) >= self.limits.connections:
            other = self._giving_way(connection.network)
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
        """Removes a connection; again does nothing."""
        self.connections.pop(connection, None)
        self._networks.discard(connection, connection.network)

    def _giving_way(self, network: str) -> SweptConnection | None:
        """Returns the connection that gives way to a new one of a network; None: none does.

        The network with most connections gives way first, also with one that is slow; then
        an idle one of a network that has no fewer. So a client with thousands keeps out only itself.
        """
        size = self._networks.size
        most = size(network)
        largest = tuple(islice(self._networks.largest(), MAX_EVICTION_CANDIDATES))
        if largest and size(largest[0].network) > most + 1:
            for other in (*(each for each in largest if each.idle), *largest):
                if not other.waiting:
                    return other
        examined = (*largest, *islice(self.connections, MAX_EVICTION_CANDIDATES))
        for other in examined:
            if other.idle and size(other.network) >= most:
                return other
        for other in examined:  # others next time, or as many busy ones would keep out all new ones
            self.connections[other] = self.connections.pop(other)
            self._networks.move_to_end(other, other.network)
        return None

    def stop(self) -> None:
        """Ends all connections but those with requests in progress, as the server ends."""
        for connection in tuple(self.connections):
            connection.stop()

    def queue_turn(self, connection: SweptConnection) -> None:
        """Queues a connection with more to do; one of them advances in each iteration of the event loop."""
        if connection.awaits_turn:
            return
        connection.awaits_turn = True
        self._turns.append(connection)
        if len(self._turns) == 1:
            asyncio.get_running_loop().call_soon(self._give_turn)

    def _give_turn(self) -> None:
        connection = self._turns[0]
        connection.awaits_turn = False
        connection.advance()
        self._turns.popleft()
        if self._turns:
            asyncio.get_running_loop().call_soon(self._give_turn)

    def count(self, limit: str) -> None:
        """Counts that a limit was exceeded."""
        self.engine.metrics.limited.labels(limit).inc()

    def exceeded(self, limit: str, what: str, request_id: bytes = b"") -> None:
        """Counts a request or connection beyond a limit; logs at most one line a second for each limit.

        request_id: of the request, if it is one.
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
        """Runs until it is canceled: times out connections past their deadline, and sets the gauges."""
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
