"""Calls without an end of their own: limited in number, and ended with UNAVAILABLE when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from polyrec.server.errors import NotReady, TooBusy
from polyrec.server.grpc.calls import is_canceled

STOPPING = "the server is stopping; ask another"


class OpenStreams:
    """The open streams of one server, `most` at a time. exceeded: as in MessageReader."""

    def __init__(self, most: int, exceeded: Callable[[str], object]) -> None:
        self._most = most
        self._exceeded = exceeded
        self._stops: set[Callable[[], object]] = set()
        self._stopping = False

    @contextmanager
    def opened(self, stop: Callable[[], object]) -> Iterator[None]:
        """Context of one stream. stop: is called when the server stops. Raises NotReady or TooBusy."""
        if self._stopping:
            raise NotReady(STOPPING)
        if len(self._stops) >= self._most:
            self._exceeded("grpc_streams")
            raise TooBusy("grpc_streams", f"more than {self._most} streams are open")
        self._stops.add(stop)
        try:
            yield
        finally:
            self._stops.discard(stop)

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work of a stream until it is done. Raises NotReady when the server stops, or TooBusy."""
        task = asyncio.create_task(work)
        try:
            with self.opened(task.cancel):
                await task
        except asyncio.CancelledError:
            if is_canceled():
                raise
            raise NotReady(STOPPING) from None
        finally:
            task.cancel()

    def stop(self) -> None:
        """Ends every stream, and rejects new ones."""
        self._stopping = True
        for stop in tuple(self._stops):
            stop()
