"""Limits the number of streaming calls, and ends them with UNAVAILABLE when the server stops.

At the limit, a new stream displaces the least recently used one; otherwise a client's unused streams could
keep out all others, even health watches.
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
    """An open stream. stop: called to end it early. ended_by: the reason if it was ended early."""

    stop: Callable[[], object]
    ended_by: RequestError | None = None

    def end(self, error: RequestError) -> None:
        """Ends the stream early; later calls are ignored."""
        self.ended_by = self.ended_by or error
        self.stop()


class OpenStreams:
    """The open streams of one server, at most `max_open`. exceeded: see MessageReader."""

    def __init__(self, max_open: int, exceeded: Callable[[str], object]) -> None:
        self._max_open = max_open
        self._exceeded = exceeded
        self._open: DisplacingSet[OpenStream] = DisplacingSet(max_open)
        self._stopping = False

    @contextmanager
    def opened(self, stop: Callable[[], object]) -> Iterator[OpenStream]:
        """Context manager that registers one stream. stop: see OpenStream. Raises NotReady."""
        if self._stopping:
            raise NotReady(STOPPING)
        stream = OpenStream(stop)
        displaced = self._open.add(stream)
        if displaced is not None:
            self._exceeded("grpc_streams")
            displaced.end(TooBusy("grpc_streams", f"more than {self._max_open} streams are open"))
        try:
            yield stream
        finally:
            self._open.discard(stream)

    def used(self, stream: OpenStream) -> None:
        """Marks a stream as just used."""
        self._open.used(stream)

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a stream's work to its end. Raises NotReady or TooBusy if the stream is ended early."""
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
        """Ends all streams and rejects new ones."""
        self._stopping = True
        for stream in tuple(self._open):
            stream.end(NotReady(STOPPING))
