"""One answer, over ASGI or as bytes: status, headers, body; compressed if the client asked and it pays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from polyrec.server.errors import JSON, error_response
from polyrec.server.http.connection.body import Headers, compress, wanted_compression

COMPRESS_FROM_BYTES = 1024

HeaderList = Sequence[tuple[bytes, bytes]]
STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
BODILESS = (204, 304)


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back. `headers` come on top of content type and length."""

    body: bytes
    status: int = 200
    content_type: bytes = JSON
    headers: HeaderList = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, body = self.encoded(scope["headers"])
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def encoded(self, asked: Headers) -> tuple[HeaderList, bytes]:
        """Headers and body, compressed if the request's headers accept that and it pays."""
        body, headers = self.body, [(b"content-type", self.content_type), *self.headers]
        if len(body) >= COMPRESS_FROM_BYTES and (encoding := wanted_compression(asked)):
            body = compress(body, encoding)
            headers += [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
        headers.append((b"content-length", b"%d" % len(body)))
        return headers, body


def to_wire(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, keep_alive: bool) -> bytes:
    """An answer as HTTP/1.1. headers: Content-Length among them, but none that is about the connection."""
    pieces = [STATUS_LINES[status]]
    for name, value in headers:
        pieces += (name, b": ", value, b"\r\n")
    pieces += (b"\r\n" if keep_alive else b"connection: close\r\n\r\n", body)
    return b"".join(pieces)


def json_reply(content: Any, status: int = 200, headers: HeaderList = ()) -> Reply:
    """A JSON answer; numpy arrays and floats are written as they are."""
    return Reply(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), status, headers=headers)


def error_reply(error: Exception, headers: Iterable[tuple[bytes, bytes]] = ()) -> Reply:
    """`{"error": ...}` with the status that belongs to the error."""
    refused = error_response(error)
    return Reply(refused.body, refused.status, headers=(*refused.headers, *headers))
