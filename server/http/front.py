"""Holds what all connections of one server share: the application, the limits, and what is counted.

Time limits are kept by one sweep over the connections instead of a timer for each: a connection only notes
when its present state must have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.types import ASGIApp

from server.dispatcher import clock
from server.engine import Engine, State
from server.http.call import HotEndpoint
from server.http.limits import FrontLimits

log = logging.getLogger("polyrec.http")

AWAKE_S = 0.0005
"""Less than this since the last batch means that the event loop has not slept since."""
EVICTION_LOOKS = 64
"""Connections looked at to find an idle one whose place a new one takes."""


class Member(Protocol):
    """What the front needs of a connection. deadline_s: on `clock`, when its state must have ended."""

    deadline_s: float

    @property
    def idle(self) -> bool: ...

    def time_out(self) -> None: ...

    def abort(self) -> None: ...


class ServerState(Protocol):
    """What is used of the state that uvicorn hands to every connection of a server."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    default_headers: list[tuple[bytes, bytes]]


class Front:
    """The shared side of every connection of one server.

    app: answers what is not hot. hot: endpoints answered without ASGI, by raw path.
    """

    def __init__(
        self,
        app: ASGIApp,
        hot: Mapping[bytes, HotEndpoint],
        engine: Engine,
        limits: FrontLimits | None = None,
    ) -> None:
        self.app = app
        self.hot = hot
        self.engine = engine
        self.limits = limits or FrontLimits()
        self.buffered = 0
        self.connections: dict[Member, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = False
        self._arrived_s = self._looked_s = 0.0
        self._logged: dict[str, tuple[float, int]] = {}

    @property
    def full(self) -> bool:
        """Whether unfinished requests take all the memory that they may."""
        return self.buffered > self.limits.buffered_bytes

    @property
    def draining(self) -> bool:
        """Whether connections should end with their next answer."""
        return self.engine.state is State.DRAINING

    def arrived_s(self) -> float:
        """Estimates when what is being read arrived, on `clock`.

        Requests wait in the kernel while the loop executes a batch. If it has not slept since, the earliest
        possible moment counts: when it last began to read.
        """
        if not self._reading:
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.get_running_loop()
            self._reading = True
            loop.call_soon(self._read)  # runs when all sockets that have data were read
            now_s = clock()
            awake = now_s - self.engine.busy_until_s < AWAKE_S
            self._arrived_s = self._looked_s if awake else now_s
            self._looked_s = now_s
        return self._arrived_s

    def _read(self) -> None:
        self._reading = False

    def join(self, connection: Member) -> bool:
        """Counts a new connection; false if there is no room for it.

        At the limit, a connection that waits between two requests is closed in its favor.
        """
        if len(self.connections) >= self.limits.connections:
            for _, other in zip(range(EVICTION_LOOKS), self.connections, strict=False):
                if other.idle:
                    self.exceeded("connections", "an idle connection was closed in favor of a new one")
                    other.abort()
                    break
            else:
                return False
        self.connections[connection] = None
        return True

    def leave(self, connection: Member) -> None:
        """Forgets a connection."""
        self.connections.pop(connection, None)

    def count(self, limit: str) -> None:
        """Counts that a limit was met."""
        self.engine.metrics.limited.labels(limit).inc()

    def exceeded(self, limit: str, what: str) -> None:
        """Counts that a limit was met, and logs it, at most one line a second for each limit."""
        self.count(limit)
        now_s = clock()
        last_s, unsaid = self._logged.get(limit, (-1.0, 0))
        if last_s >= 0 and now_s - last_s < 1:
            self._logged[limit] = last_s, unsaid + 1
            return
        more = f" (and {unsaid} more since the last such line)" if unsaid else ""
        log.warning("HTTP limit %s: %s%s", limit, what, more)
        self._logged[limit] = now_s, 0

    async def sweep(self) -> None:
        """Ends, forever, connections whose state lasts too long."""
        while True:
            await asyncio.sleep(self.limits.sweep_s)
            now_s = clock()
            for connection in tuple(self.connections):
                if connection.deadline_s <= now_s:
                    try:
                        connection.time_out()
                    except Exception:
                        log.exception("a connection could not be ended")
            self.engine.metrics.connections.only.set(len(self.connections))
            self.engine.metrics.buffered_bytes.only.set(self.buffered)
