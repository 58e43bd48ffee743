"""`polyrec.serve`: a server in a process of its own, for tests and notebooks."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import Any

from polyrec.client.async_client import AsyncClient
from polyrec.client.client import Client
from polyrec.models.errors import PolyrecError
from polyrec.models.fetching.url import model_place
from polyrec.server.child import ServerProcess, StartFailed, start

LOG_TAIL = 2000
"""Characters of a failed server's log that its error shows."""


class RunningServer:
    """A server process that answers at `url`; a context manager that ends it.

    It ends with this process, too, unless this process is killed.
    """

    def __init__(self, process: ServerProcess) -> None:
        self._process = process
        self._finalizer = weakref.finalize(self, process.stop)

    @property
    def url(self) -> str:
        """Its address, like http://127.0.0.1:40123."""
        return self._process.url

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.process.pid

    def client(self, **options: Any) -> Client:
        """A new client of it; options as those of `Client`."""
        return Client(self.url, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """A new asynchronous client of it."""
        return AsyncClient(self.url, **options)

    def stop(self) -> None:
        """Stops the server: it answers the requests that it has begun, and has ended when this returns."""
        self._finalizer()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def serve(model: str | Path, **settings: object) -> RunningServer:
    """Starts a server of a bundle (a folder) or a plan (a file), also by URL, and waits until it is ready.

    settings: as POLYREC_ variables in lower case (docs/protocol.md), like port=8000 or policy="priced";
    without a port a free one is taken, on 127.0.0.1. Raises PolyrecError with the server's own reason.
    """
    try:
        place = model_place(model)
    except ValueError as e:
        raise PolyrecError(f"'{model}': {e}") from None
    if isinstance(place, Path) and not place.exists():
        raise PolyrecError(f"no bundle or plan '{place}'")
    is_plan = place.is_file() if isinstance(place, Path) else place.is_plan
    given = {"drain_grace_s": 0} | settings | {"plan" if is_plan else "bundle": place}
    # a file, not a pipe: nobody reads a pipe while the server runs, and a full one would stop it
    with tempfile.TemporaryFile("w+") as log:
        try:
            return RunningServer(start(given, stderr=log))
        except StartFailed as e:
            log.seek(0)
            reason = log.read()[-LOG_TAIL:].strip().splitlines()
            raise PolyrecError(f"{e}: {reason[-1]}" if reason else str(e)) from None
