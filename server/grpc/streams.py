"""Streaming calls: limited in number, and ended with UNAVAILABLE when the server stops.

A new stream displaces the one that was used longest ago: a client's unused streams could otherwise keep out
all others, and health watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from polyrec.server.displacing import DisplacingSet
from polyrec.server.errors import NotReady, RequestError, TooBusy
from polyrec.server.grpc.calls import is_canceled

STOPPING = "the server is stopping; ask another"


@dataclass(slots=True, eq=False)
class OpenStream:
    """A stream. stop: is called to end it early; ended_by: then says why."""

    stop: Callable[[], object]
    ended_by: RequestError | None = None

    def end(self, error: RequestError) -> None:
        """Ends it early; the first error counts."""
        self.ended_by = self.ended_by or error
        self.stop()


class OpenStreams:
    """The open streams of one server, `most` at a time. exceeded: as in MessageReader."""

    def __init__(self, most: int, exceeded: Callable[[str], object]) -> None:
        self._most = most
        self._exceeded = exceeded
        self._open: DisplacingSet[OpenStream] = DisplacingSet(most)
        self._stopping = False

    @contextmanager
    def opened(self, stop: Callable[[], object]) -> Iterator[OpenStream]:
        """Context of one stream. stop: as of an OpenStream. Raises NotReady."""
        if self._stopping:
            raise NotReady(STOPPING)
        stream = OpenStream(stop)
        displaced = self._open.add(stream)
        if displaced is not None:
            self._exceeded("grpc_streams")
            displaced.end(TooBusy("grpc_streams", f"more than {self._most} streams are open"))
        try:
            yield stream
        finally:
            self._open.discard(stream)

    def used(self, stream: OpenStream) -> None:
        """Notes that a stream is in use now."""
        self._open.used(stream)

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work of a stream until it is done. Raises NotReady or TooBusy if it is ended early."""
        task = asyncio.create_task(work)
        try:
            with self.opened(task.cancel) as stream:
                try:
                    await task
                except asyncio.CancelledError:
                    if stream.ended_by is None or is_canceled():
                        raise
                    raise stream.ended_by from None
        finally:
            task.cancel()

    def stop(self) -> None:
        """Ends every stream, and rejects new ones."""
        self._stopping = True
        for stream in tuple(self._open):
            stream.end(NotReady(STOPPING))
