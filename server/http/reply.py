"""One answer, over ASGI or as bytes: status, headers, body; compressed if the client asked and it pays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from server.errors import JSON, refusal
from server.http.body import Headers, compress, wanted_compression

COMPRESS_FROM_BYTES = 1024

HeaderList = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back. `headers` come on top of content type and length."""

    body: bytes
    status: int = 200
    content_type: bytes = JSON
    headers: HeaderList = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, body = self._as_asked(scope["headers"])
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def wire(self, first: HeaderList, asked: Headers, keep_alive: bool) -> bytes:
        """All of it as HTTP/1.1. first: headers of the server; asked: the request's."""
        headers, body = self._as_asked(asked)
        pieces = [STATUS_LINE[self.status]]
        for name, value in (*first, *headers):
            pieces += (name, b": ", value, b"\r\n")
        pieces += (b"\r\n" if keep_alive else b"connection: close\r\n\r\n", body)
        return b"".join(pieces)

    def _as_asked(self, asked: Headers) -> tuple[HeaderList, bytes]:
        body, headers = self.body, [(b"content-type", self.content_type), *self.headers]
        if len(body) >= COMPRESS_FROM_BYTES and (encoding := wanted_compression(asked)):
            body = compress(body, encoding)
            headers += [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
        headers.append((b"content-length", b"%d" % len(body)))
        return headers, body


def json_reply(content: Any, status: int = 200, headers: HeaderList = ()) -> Reply:
    """A JSON answer; numpy arrays and floats are written as they are."""
    return Reply(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), status, headers=headers)


def error_reply(error: Exception, headers: Iterable[tuple[bytes, bytes]] = ()) -> Reply:
    """`{"error": ...}` with the status that belongs to the error."""
    refused = refusal(error)
    return Reply(refused.body, refused.status, headers=(*refused.headers, *headers))
