"""Runs one HTTP request through an ASGI application and collects its answer.

connection.py feeds the body as it arrives and receives the complete answer. The application may answer before
the whole body has arrived (missing token, unknown page); the connection then drops the rest of the body.
hot_request.py is the counterpart for endpoints that are answered without ASGI.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from urllib.parse import unquote

from httptools import HttpParserInvalidURLError, parse_url
from starlette.types import ASGIApp, Message, Scope

from polyrec.server.errors import Defect, Malformed, Stopping
from polyrec.server.http.connection.access_log import ANSWERED_BY, AnsweredBy
from polyrec.server.http.connection.head import Head
from polyrec.server.http.connection.reply import HeaderList, Reply, WriteReply, error_reply
from polyrec.server.request_ids import SCOPE_KEY, log_extra

log = logging.getLogger("polyrec.http")

_PLAIN = re.compile(rb"/[A-Za-z0-9_./-]*")
MAX_WAITING_BYTES = 64 * 2**10
"""Received bytes that may wait for an earlier request or for the application before reading pauses."""
Address = tuple[str, int] | None


def make_scope(head: Head, client: Address, server: Address, scheme: str, request_id: str) -> Scope:
    """Returns the ASGI scope of a request. Raises Malformed if its target is not a URL."""
    path, query = head.target, b""
    if not _PLAIN.fullmatch(path):
        try:
            url = parse_url(path)
        except HttpParserInvalidURLError:
            raise Malformed("the request's target is not a URL") from None
        path, query = url.path or b"/", url.query or b""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "method": head.method.decode("ascii"),
        "scheme": scheme,
        "path": unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": head.headers,
        "client": client,
        "server": server,
        SCOPE_KEY: request_id,
    }


class AsgiRequest:
    """One request that the application processes.

    reply: writes the answer; called once.
    drained: called when the application has read all fed bytes, so that more may be fed.
    max_waiting_bytes: bytes of the body that may wait before the connection should pause reading.
    waiting_bytes: fed bytes that the application has not read yet.
    """

    def __init__(self, app: ASGIApp, scope: Scope, reply: WriteReply, drained: Callable[[], None]) -> None:
        self._app = app
        self._scope = scope
        self._reply = reply
        self._drained = drained
        self.max_waiting_bytes = MAX_WAITING_BYTES
        self.waiting_bytes = 0
        self._pieces: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._complete = self._delivered = self._gone = self._answer_sent = False
        self._news = asyncio.Event()
        self._status = 0
        self._headers: HeaderList = ()
        self._body: list[bytes] = []

    @property
    def route(self) -> str:
        """The endpoint's route, empty until the application has found it."""
        return getattr(self._scope.get("route"), "path", "")

    @property
    def answered_by(self) -> AnsweredBy:
        """The path that answered, if the request was a prediction."""
        found: AnsweredBy = self._scope.get(ANSWERED_BY, AnsweredBy())
        return found

    def start(self, tasks: set[asyncio.Task[None]]) -> None:
        """Calls the application in a task, which is kept in `tasks` while it runs.

        Does nothing if the request has been answered or its client has left.
        """
        if self._answer_sent or self._gone:
            return
        self._task = task = asyncio.get_running_loop().create_task(self.run())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def feed(self, piece: bytes) -> None:
        """Appends a piece of the body."""
        self.waiting_bytes += len(piece)
        self._pieces.append(piece)
        self._news.set()

    def end_body(self) -> None:
        """Marks the body as complete."""
        self._complete = True
        self._news.set()

    def reject(self, error: Exception) -> Reply:
        """Builds the reply of an error."""
        return error_reply(error)

    def abandon(self, error: Exception) -> None:
        """Cancels the application; the connection answers with `error` itself."""
        self._answer_sent = True
        if self._task is not None:
            self._task.cancel(error)

    def disconnect(self) -> None:
        """Tells the application that the client has closed the connection."""
        self._gone = True
        self._news.set()

    async def run(self) -> None:
        """Calls the application. Answers 500 if it raises or sends no answer, 503 if it is canceled."""
        try:
            await self._app(self._scope, self._receive, self._send)
        except asyncio.CancelledError:
            # uvicorn cancels what still runs when the drain is over
            self._fail(Stopping())
            raise
        except Exception:
            scope = self._scope
            log.exception("%s %s failed", scope["method"], scope["path"], extra=log_extra(scope[SCOPE_KEY]))
        self._fail(Defect("internal error; the server's log has the details"))

    async def _receive(self) -> Message:
        while not self._gone:
            if self._pieces or (self._complete and not self._delivered):
                body = b"".join(self._pieces)
                self._pieces.clear()
                self.waiting_bytes = 0
                self._delivered = self._complete
                self._drained()
                return {"type": "http.request", "body": body, "more_body": not self._complete}
            self._news.clear()
            await self._news.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], tuple(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self._body.append(message.get("body", b""))
            if not message.get("more_body", False) and not self._answer_sent:
                self._answer(self._status, self._headers, b"".join(self._body))

    def _fail(self, error: Exception) -> None:
        """Answers with an error unless the application has answered."""
        if not self._answer_sent:
            reply = error_reply(error)
            self._answer(reply.status, *reply.encoded(()))

    def _answer(self, status: int, headers: HeaderList, body: bytes) -> None:
        self._answer_sent = True
        self._reply(status, headers, body)
