"""Rejects per-process calls on a port that several server processes share (server/app/processes.py).

Any process may accept a connection there, so a metrics scrape or an admin call would reach a random one. Each
process has a port of its own for such calls.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from polyrec.server.errors import Misdirected
from polyrec.server.http.connection.reply import error_reply

OWN = ("/metrics", "/v1/admin/", "/v2/repository/")
"""Paths, or prefixes of paths, that are answered only at a process's own port."""
_OWN_OF_A_MODEL = re.compile("/v1/models/[^/]*/admin/|/v2/models/([^/]*/(versions/[^/]*/)?)?stats$")


class SharedPort:
    """ASGI application that rejects such calls and forwards all other requests.

    port: the shared port. consecutive: whether the processes' own ports follow it; they are any with port 0.
    """

    def __init__(self, app: ASGIApp, port: int, consecutive: bool) -> None:
        self._app = app
        self._port = port
        self._own = f"{port + 1} and so on" if consecutive else "see `processes` in the ready message"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _own(scope["path"]) and scope["server"][1] == self._port:
            error = Misdirected(
                f"port {self._port} is shared by several processes: call each at its own port, {self._own}"
            )
            await error_reply(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _own(path: str) -> bool:
    return path.startswith(OWN) or _OWN_OF_A_MODEL.match(path) is not None
