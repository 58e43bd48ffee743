"""Rejects calls that concern one process on a port that several processes share.

Any of them may accept a connection, so a scrape or a change would reach one process at random. Each has an
address of its own for these.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from polyrec.server.errors import Misdirected
from polyrec.server.http.connection.reply import error_reply

OWN = ("/metrics", "/v1/admin/", "/v2/repository/")
"""Paths, or beginnings of paths, that are answered at a process's own address only."""
_OWN_OF_A_MODEL = re.compile("/v1/models/[^/]*/admin/")


class SharedPort:
    """ASGI application that passes on all other requests. port: the shared one."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _own(scope["path"]) and scope["server"][1] == self._port:
            error = Misdirected(
                f"port {self._port} is shared by several processes: call each at its own port, "
                f"{self._port + 1} and so on"
            )
            await error_reply(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _own(path: str) -> bool:
    return path.startswith(OWN) or _OWN_OF_A_MODEL.match(path) is not None
