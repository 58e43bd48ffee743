"""The body of a request: bytes from the socket, decompressed, within the server's limit.

The limit applies to Content-Length, to the bytes received and to the bytes decompressed. Decompression goes
in steps of bounded time, between which other clients are served; a body that exceeds the limit or the
compression ratio is rejected at that step.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from typing import Any, NoReturn

from starlette.types import Receive

from polyrec.server.errors import Malformed, RequestError, TooLarge

MAX_STEP_BYTES = 2**14
"""Maximum compressed bytes of one step. The slowest input, only Huffman tables, takes 1.4 ms."""
MAX_STEP_OUTPUT_BYTES = 2**18
"""Maximum decompressed bytes of one step; they take at most a millisecond."""
MAX_RATIO = 100
RATIO_FROM_BYTES = 2**16
"""Decompressed bytes beyond which MAX_RATIO applies: a small body of equal rows may compress better."""
MAX_ACCEPT_ENCODING_BYTES = 1024
"""Maximum length of an Accept-Encoding header; a longer one is ignored."""

Headers = Iterable[tuple[bytes, bytes]]


class ClientGone(RequestError):
    """The client closed its connection before the answer."""

    outcome = "cancelled"


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    for key, value in headers:
        if key == name:
            return value
    return None


def content_encoding(headers: Headers, limit: int) -> str | None:
    """Returns a body's Content-Encoding; checks Content-Length. Raises TooLarge or Malformed."""
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
    """Checks a body's announced length in bytes. Raises TooLarge."""
    if length > limit:
        raise TooLarge(f"the body has {length} bytes; the limit is {limit}")


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """Reads a body from ASGI messages and decompresses it. Raises TooLarge, Malformed or ClientGone."""
    encoding = content_encoding(headers, limit)
    body = await _pieces(receive, limit)
    if encoding in (None, "", "identity"):
        return body
    inflater = Inflater(encoding, limit, len(body))
    inflater.feed(body)
    while inflater.step():
        await asyncio.sleep(0)
    return inflater.finish()


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


class Inflater:
    """Decompresses one body as it arrives: Content-Encoding gzip or deflate (with or without zlib's frame).

    Call `feed` with what arrives, `step` until it returns False, with the event loop running in between, and
    `finish` after the last piece. The result does not depend on how the body is cut into pieces.
    """

    __slots__ = ("_encoding", "_in_bytes", "_limit", "_max_bytes", "_out", "_pending", "_stream")

    def __init__(self, encoding: str, limit: int, length: int | None = None) -> None:
        """limit: maximum decompressed bytes. length: bytes of the compressed body, None if unknown; if known,
        the ratio is checked at each step, else only at the end. Raises Malformed for an unsupported encoding.
        """
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise Malformed(
                f"Content-Encoding '{encoding[:40]}' is not supported; use gzip, deflate or identity"
            )
        self._encoding = encoding
        self._limit = limit
        self._stream: Any = None if encoding == "deflate" else zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._max_bytes = limit if length is None else min(limit, _max_decompressed(length))
        self._pending = bytearray()
        self._in_bytes = 0
        self._out = bytearray()

    def feed(self, piece: bytes) -> None:
        """Appends a piece of the compressed body; decompresses nothing yet."""
        self._pending += piece

    def step(self) -> bool:
        """Decompresses one step; returns whether there is more to do.

        A step takes at most MAX_STEP_BYTES and gives at most MAX_STEP_OUTPUT_BYTES. Raises TooLarge beyond
        the limit or the ratio, and Malformed for data that is not of the encoding or follows its end.
        """
        if self._stream is None:
            if len(self._pending) < 2:
                return False
            self._stream = zlib.decompressobj(_deflate_window(self._pending))
        given = bytes(self._pending[:MAX_STEP_BYTES])
        try:
            out = self._stream.decompress(
                given, min(MAX_STEP_OUTPUT_BYTES, self._max_bytes + 1 - len(self._out))
            )
        except zlib.error as e:
            raise Malformed(f"the body is not {self._encoding}: {e}") from None
        # also a second gzip member, as a body of a million empty ones would be a cheap attack
        if self._stream.unused_data:
            raise Malformed(f"bytes follow the end of the {self._encoding} body")
        taken = len(given) - len(self._stream.unconsumed_tail)
        del self._pending[:taken]
        self._in_bytes += taken
        self._out += out
        if len(self._out) > self._max_bytes:
            self._raise_too_large()
        if self._stream.eof:
            if self._pending:
                raise Malformed(f"bytes follow the end of the {self._encoding} body")
            return False
        # A full step may have left output inside the stream, although all of its input is consumed.
        return bool(self._pending) or len(out) == MAX_STEP_OUTPUT_BYTES

    def finish(self) -> bytes:
        """The body, once `step` has returned False after the last piece.

        Raises Malformed if it is truncated, TooLarge if it was compressed beyond MAX_RATIO.
        """
        if self._stream is None or not self._stream.eof:
            raise Malformed(f"the {self._encoding} body is truncated")
        # not while it arrives, when the ratio depends on how the body is cut
        if len(self._out) > _max_decompressed(self._in_bytes):
            self._raise_too_large()
        return bytes(self._out)

    def _raise_too_large(self) -> NoReturn:
        if len(self._out) > self._limit:
            raise TooLarge(f"the body decompresses to more than {self._limit} bytes")
        raise TooLarge(f"the body decompresses to more than {MAX_RATIO} times its size")


def _max_decompressed(length: int) -> int:
    """Maximum decompressed bytes that MAX_RATIO allows for a compressed body of that length."""
    return max(RATIO_FROM_BYTES, MAX_RATIO * length)


def _deflate_window(first: bytes | bytearray) -> int:
    """zlib's window bits for a deflate body, from its first two bytes."""
    # RFC 9110 requires the zlib format; some clients send a raw deflate stream.
    framed = first[0] & 15 == 8 and not (first[0] << 8 | first[1]) % 31
    return zlib.MAX_WBITS if framed else -zlib.MAX_WBITS


def accepted_encoding(headers: Headers) -> str | None:
    """`gzip` or `deflate` if the client accepts one, gzip first."""
    accepted = header(headers, b"accept-encoding")
    if accepted is None or len(accepted) > MAX_ACCEPT_ENCODING_BYTES:
        return None
    offers = set()
    for offer in accepted.decode("latin-1").lower().split(","):
        name, _, parameters = offer.partition(";")
        if parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            offers.add(name.strip())
    return "gzip" if "gzip" in offers else "deflate" if "deflate" in offers else None


def compress(body: bytes, encoding: str) -> bytes:
    """Compresses an answer at the fastest level, as answers are small and networks fast."""
    window = 16 + zlib.MAX_WBITS if encoding == "gzip" else zlib.MAX_WBITS
    stream = zlib.compressobj(1, zlib.DEFLATED, window)
    return stream.compress(body) + stream.flush()
