"""The body of a request: bytes from the socket, decompressed, within the plan's limit.

The limit holds for the length that is announced, for what actually arrives, and for what it
decompresses to: a small body that unpacks into a huge one is refused while it unpacks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from starlette.types import Receive

from server.errors import Malformed, RequestError, TooLarge

Headers = Iterable[tuple[bytes, bytes]]


class ClientGone(RequestError):
    """The client closed its connection before its request was complete; nobody reads an answer."""

    outcome = "cancelled"


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    for key, value in headers:
        if key == name:
            return value
    return None


def announced(headers: Headers, limit: int) -> str | None:
    """The body's Content-Encoding. Raises TooLarge (413) or Malformed (400) by its Content-Length."""
    length = encoding = None
    for key, value in headers:
        if key == b"content-length":
            length = value
        elif key == b"content-encoding":
            encoding = value
    if length is not None:
        if not length.isdigit() or len(length) > 18:
            raise Malformed("header Content-Length is not a number of bytes")
        check_length(int(length), limit)
    return None if encoding is None else encoding.decode("latin-1").strip().lower()


def check_length(length: int, limit: int) -> None:
    """Of a body, as announced. Raises TooLarge."""
    if length > limit:
        raise TooLarge(f"the body has {length} bytes; the limit is {limit}")


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """By ASGI's messages. Raises TooLarge (413), Malformed (400) or ClientGone."""
    encoding = announced(headers, limit)
    body = await _pieces(receive, limit)
    return body if encoding is None else decompress(body, encoding, limit)


async def _pieces(receive: Receive, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection")
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise TooLarge(f"the body has more than {limit} bytes")
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Content-Encoding gzip, deflate (with or without zlib's frame) or identity.

    Raises TooLarge as soon as more than `limit` bytes come out, Malformed for anything else.
    """
    if encoding in ("", "identity"):
        return body
    if encoding in ("gzip", "x-gzip"):
        window = 16 + zlib.MAX_WBITS
    elif encoding == "deflate":
        # RFC 9110 means zlib's frame; some clients send the bare stream.
        framed = len(body) >= 2 and body[0] & 15 == 8 and not (body[0] << 8 | body[1]) % 31
        window = zlib.MAX_WBITS if framed else -zlib.MAX_WBITS
    else:
        raise Malformed(f"Content-Encoding '{encoding[:40]}' is not supported; use gzip, deflate or identity")
    stream = zlib.decompressobj(window)
    try:
        out = stream.decompress(body, limit + 1)
    except zlib.error as e:
        raise Malformed(f"the body is not {encoding}: {e}") from None
    if len(out) > limit:
        raise TooLarge(f"the body decompresses to more than {limit} bytes")
    if not stream.eof:
        raise Malformed(f"the {encoding} body is truncated")
    # Also a second gzip member: a body of a million empty ones would be a cheap way to keep us busy.
    if stream.unused_data:
        raise Malformed(f"bytes follow the end of the {encoding} body")
    return out


def wanted_compression(headers: Headers) -> str | None:
    """`gzip` or `deflate` if the client accepts one, gzip first."""
    accepted = header(headers, b"accept-encoding")
    if accepted is None:
        return None
    offers = set()
    for offer in accepted.decode("latin-1").lower().split(","):
        name, _, parameters = offer.partition(";")
        if parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            offers.add(name.strip())
    return "gzip" if "gzip" in offers else "deflate" if "deflate" in offers else None


def compress(body: bytes, encoding: str) -> bytes:
    """The fastest level: answers are small and the network near."""
    window = 16 + zlib.MAX_WBITS if encoding == "gzip" else zlib.MAX_WBITS
    stream = zlib.compressobj(1, zlib.DEFLATED, window)
    return stream.compress(body) + stream.flush()
