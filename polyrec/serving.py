"""Implements `polyrec.serve`: a server in a separate process, for tests and notebooks."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import Any

from polyrec.client.async_client import AsyncClient
from polyrec.client.client import Client
from polyrec.models.errors import PolyrecError
from polyrec.models.fetching.url import model_place
from polyrec.server.child import ServerProcess, start


class RunningServer:
    """A server process that answers at `url`; a context manager that stops it.

    It also ends together with this process, unless this process is killed.
    """

    def __init__(self, process: ServerProcess) -> None:
        self._process = process
        self._finalizer = weakref.finalize(self, process.stop)

    @property
    def url(self) -> str:
        """Address of the server, such as http://127.0.0.1:40123."""
        return self._process.url

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.process.pid

    def client(self, **options: Any) -> Client:
        """Creates a client of this server; options as for `Client`."""
        return Client(self.url, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """Creates an asynchronous client of this server; options as for `Client`."""
        return AsyncClient(self.url, **options)

    def stop(self) -> None:
        """Stops the server after it has answered the requests in progress; returns once it has exited."""
        self._finalizer()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def serve(model: str | Path, **settings: object) -> RunningServer:
    """Starts a server for a bundle (a folder) or a plan (a file), each also by URL, and waits until it is
    ready.

    settings: POLYREC_ variables in lower case (docs/protocol.md), such as port=8000 or policy="priced".
    Without a port, a free one on 127.0.0.1 is used. Raises PolyrecError with the server's own reason.
    """
    try:
        place = model_place(model)
    except ValueError as e:
        raise PolyrecError(f"'{model}': {e}") from None
    if isinstance(place, Path) and not place.exists():
        raise PolyrecError(f"no bundle or plan '{place}'")
    is_plan = place.is_file() if isinstance(place, Path) else place.is_plan
    given = {"drain_grace_s": 0} | settings | {"plan" if is_plan else "bundle": place}
    # a file instead of a pipe, which would fill up and block the server, since nobody reads it
    with tempfile.TemporaryFile("w") as log:
        return RunningServer(start(given, stderr=log))
