"""A reply with status, headers and body, which can be sent over ASGI or as raw HTTP/1.1 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import orjson
from starlette.types import Receive, Scope, Send

from polyrec.server.errors import JSON, error_response
from polyrec.server.http.connection.body import Headers, accepted_encoding, compress

COMPRESS_FROM_BYTES = 1024

HeaderList = Sequence[tuple[bytes, bytes]]
STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
BODILESS = (204, 304)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class WriteReply(Protocol):
    """Writes an answer to the connection. close: whether to close the connection after it."""

    def __call__(self, status: int, headers: HeaderList, body: bytes, close: bool = False) -> None: ...


class Reply(NamedTuple):
    """A reply, compressed on sending if the client accepts that and the body is large.

    headers: in addition to content type and length.
    compressed: whether the body is sent as it is; `headers` declare if it is compressed.
    """

    body: bytes
    status: int = 200
    content_type: bytes = JSON
    headers: HeaderList = ()
    compressed: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, body = self.encoded(scope["headers"])
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def encoded(self, request_headers: Headers) -> tuple[HeaderList, bytes]:
        """Returns headers and body, compressed if the request accepts that and the body is large."""
        body, headers = self.body, [(b"content-type", self.content_type), *self.headers]
        if len(body) >= COMPRESS_FROM_BYTES and not self.compressed:
            encoding = accepted_encoding(request_headers)
            if encoding:
                body = compress(body, encoding)
                headers += [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
        headers.append((b"content-length", b"%d" % len(body)))
        return headers, body


def to_wire(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, keep_alive: bool) -> bytes:
    """Formats an answer as HTTP/1.1. headers: include Content-Length but no connection headers."""
    if status in BODILESS:
        body = b""
    pieces = [STATUS_LINES[status]]
    for name, value in headers:
        pieces += (name, b": ", value, b"\r\n")
    pieces += (b"\r\n" if keep_alive else b"connection: close\r\n\r\n", body)
    return b"".join(pieces)


def json_reply(content: Any, status: int = 200, headers: HeaderList = ()) -> Reply:
    """Returns a JSON reply. Serializes numpy arrays and scalars directly."""
    return Reply(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), status, headers=headers)


def error_reply(error: Exception) -> Reply:
    """Returns the reply `{"error": ...}` with the error's status."""
    response = error_response(error)
    return Reply(response.body, response.status, headers=response.headers)
