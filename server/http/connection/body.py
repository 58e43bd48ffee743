"""Decompresses request bodies within the server's size limit, and compresses answers.

The limit applies to Content-Length, to the bytes received and to the bytes decompressed. Decompression runs
in steps of bounded time, between which the event loop serves other clients. A body that exceeds the limit or
the maximum compression ratio is rejected at that step.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from typing import Any, NoReturn

from starlette.types import Receive

from polyrec.server.errors import Malformed, RequestError, TooLarge

MAX_STEP_BYTES = 2**14
"""Maximum compressed bytes per step. The slowest input, which has only Huffman tables, takes 1.4 ms."""
MAX_STEP_OUTPUT_BYTES = 2**18
"""Maximum decompressed bytes per step, which take at most a millisecond."""
MAX_RATIO = 100
RATIO_FROM_BYTES = 2**16
"""Decompressed bytes from which MAX_RATIO applies; a small body of equal rows may compress better."""
MAX_ACCEPT_ENCODING_BYTES = 1024
"""Maximum length of an Accept-Encoding header; a longer one is ignored."""

Headers = Iterable[tuple[bytes, bytes]]


class ClientGone(RequestError):
    """The client closed its connection before the answer."""

    outcome = "cancelled"


def header(headers: Headers, name: bytes) -> bytes | None:
    """Returns the value of the first header with that lower-case name, None if there is none."""
    for key, value in headers:
        if key == name:
            return value
    return None


def content_encoding(headers: Headers, limit: int) -> str | None:
    """Returns a body's Content-Encoding, after checking Content-Length. Raises TooLarge or Malformed."""
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
    """Checks a body's announced length in bytes against the limit. Raises TooLarge."""
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
    """Decompresses one body as it arrives. Supports gzip and deflate, with or without the zlib header.

    Call `feed` with each piece, then `step` until it returns False, letting the event loop run in between,
    and `finish` after the last piece. The result does not depend on how the body is cut into pieces.
    """

    __slots__ = ("_encoding", "_in_bytes", "_limit", "_max_bytes", "_out", "_pending", "_stream")

    def __init__(self, encoding: str, limit: int, length: int | None = None) -> None:
        """Prepares to decompress. Raises Malformed for an unsupported encoding.

        limit: maximum decompressed bytes.
        length: bytes of the compressed body, None if unknown. If known, the compression ratio is checked at
            each step, otherwise only at the end.
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

    @property
    def held_bytes(self) -> int:
        """Bytes in memory, compressed and decompressed."""
        return len(self._pending) + len(self._out)

    def feed(self, piece: bytes) -> None:
        """Appends a piece of the compressed body without decompressing it."""
        self._pending += piece

    def step(self) -> bool:
        """Decompresses one step; returns whether more steps are needed.

        A step reads at most MAX_STEP_BYTES and writes at most MAX_STEP_OUTPUT_BYTES. Raises TooLarge beyond
        the limit or the ratio, and Malformed for invalid data or data after the end of the stream.
        """
        if self._stream is None:
            if len(self._pending) < 2:
                return False
            self._stream = zlib.decompressobj(_deflate_window(self._pending))
        chunk = bytes(self._pending[:MAX_STEP_BYTES])
        try:
            out = self._stream.decompress(
                chunk, min(MAX_STEP_OUTPUT_BYTES, self._max_bytes + 1 - len(self._out))
            )
        except zlib.error as e:
            raise Malformed(f"the body is not {self._encoding}: {e}") from None
        # this also rejects a second gzip member; a million empty ones would be a cheap attack
        if self._stream.unused_data:
            raise Malformed(f"bytes follow the end of the {self._encoding} body")
        taken = len(chunk) - len(self._stream.unconsumed_tail)
        del self._pending[:taken]
        self._in_bytes += taken
        self._out += out
        if len(self._out) > self._max_bytes:
            self._raise_too_large()
        if self._stream.eof:
            if self._pending:
                raise Malformed(f"bytes follow the end of the {self._encoding} body")
            return False
        # after a full step zlib may hold more output although it has consumed all input
        return bool(self._pending) or len(out) == MAX_STEP_OUTPUT_BYTES

    def finish(self) -> bytes:
        """Returns the body. Call it once `step` has returned False after the last piece.

        Raises Malformed if the body is truncated, TooLarge if its compression exceeds MAX_RATIO.
        """
        if self._stream is None or not self._stream.eof:
            raise Malformed(f"the {self._encoding} body is truncated")
        # checked only now, since meanwhile the ratio depends on how the body is cut into pieces
        if len(self._out) > _max_decompressed(self._in_bytes):
            self._raise_too_large()
        return bytes(self._out)

    def _raise_too_large(self) -> NoReturn:
        if len(self._out) > self._limit:
            raise TooLarge(f"the body decompresses to more than {self._limit} bytes")
        raise TooLarge(f"the body decompresses to more than {MAX_RATIO} times its size")


def _max_decompressed(length: int) -> int:
    """Returns the decompressed bytes that MAX_RATIO allows for a compressed body of `length` bytes."""
    return max(RATIO_FROM_BYTES, MAX_RATIO * length)


def _deflate_window(first: bytes | bytearray) -> int:
    """Returns zlib's window bits for a deflate body, judging by its first two bytes."""
    # RFC 9110 requires the zlib format, but some clients send a raw deflate stream
    framed = first[0] & 15 == 8 and not (first[0] << 8 | first[1]) % 31
    return zlib.MAX_WBITS if framed else -zlib.MAX_WBITS


def accepted_encoding(headers: Headers) -> str | None:
    """Returns `gzip` or `deflate`, whichever the client accepts, preferring gzip; None for neither."""
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
    """Compresses an answer at the fastest level, since answers are small and networks fast."""
    window = 16 + zlib.MAX_WBITS if encoding == "gzip" else zlib.MAX_WBITS
    stream = zlib.compressobj(1, zlib.DEFLATED, window)
    return stream.compress(body) + stream.flush()
