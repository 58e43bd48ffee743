"""Separates one request's body from the bytes that a connection receives (RFC 9112, sections 6 and 7.1).

connection.py uses it. Chunks are decoded here because httptools does not report where a body ends. Chunk
extensions and trailers are limited in size and dropped.
"""

from __future__ import annotations

from http import HTTPStatus

from polyrec.server.errors import HttpViolation

MAX_LINE_BYTES = 256
"""Maximum length of the line with a chunk's size and extensions."""
MAX_TRAILER_BYTES = 8 * 2**10
MAX_SIZE_DIGITS = 12
FREE_CHUNKS, MIN_AVERAGE_BYTES = 1024, 1024
"""Number of chunks allowed at any size, and the minimum average size beyond that number.

Decoding a chunk costs as much as 10 KB of data, so tiny chunks would be a cheap attack."""
LINE_OVERHEAD_BYTES = 32
"""Bytes counted for each line of the trailer in addition to its length."""
_HEX = frozenset(b"0123456789abcdefABCDEF")


class ChunkedDecoder:
    """Decodes one chunked body. complete: whether its end was read. rest: bytes after its end."""

    __slots__ = ("_bytes", "_chunks", "_held", "_left", "_trailer_bytes", "complete", "rest")

    def __init__(self) -> None:
        self.complete = False
        self.rest = b""
        self._held = b""
        """An incomplete line."""
        self._left = 0
        """Bytes until the end of the current chunk including its CRLF; -1 in the trailer."""
        self._bytes = self._chunks = self._trailer_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Decodes more bytes and returns pieces of the body. Raises HttpViolation."""
        data, self._held = self._held + piece, b""
        at, out = 0, []
        while not self.complete:
            if self._left > 2:
                taken = data[at : at + self._left - 2]
                if not taken:
                    break
                out.append(taken)
                at += len(taken)
                self._left -= len(taken)
            elif self._left > 0:
                if data[at : at + 1] not in (b"", b"\r\n"[2 - self._left : 3 - self._left]):
                    raise _malformed("a chunk does not end where its size says")
                if at >= len(data):
                    break
                at += 1
                self._left -= 1
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    self._held = data[at:]
                    self._check_line(self._held)
                    break
                self._line(data[at:end])
                at = end + 2
        if self.complete:
            self.rest = data[at:]
        return out

    def _line(self, line: bytes) -> None:
        self._check_line(line)
        if self._left < 0:
            self._trailer_bytes += len(line) + LINE_OVERHEAD_BYTES
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                raise _malformed("the body's trailer is too long")
            self.complete = not line
            return
        size = line.partition(b";")[0].rstrip(b" \t")
        if not size or len(size) > MAX_SIZE_DIGITS or not _HEX.issuperset(size):
            raise _malformed("a chunk's size is not a hexadecimal number")
        self._left = int(size, 16) + 2
        self._chunks += 1
        self._bytes += self._left - 2
        if self._chunks > FREE_CHUNKS + self._bytes // MIN_AVERAGE_BYTES:
            raise _malformed(
                f"the body has more than {FREE_CHUNKS} chunks of less than {MIN_AVERAGE_BYTES} bytes"
            )
        if self._left == 2:
            self._left = -1

    def _check_line(self, line: bytes) -> None:
        if len(line) > (MAX_TRAILER_BYTES if self._left < 0 else MAX_LINE_BYTES) or b"\n" in line:
            raise _malformed("a line of the chunked body is malformed or too long")


class BodyReader:
    """Reads one body.

    length: bytes of the body, None if it is chunked.
    size: bytes received so far.
    left: bytes still missing from a body of known length.
    """

    __slots__ = ("_chunks", "left", "size")

    def __init__(self, length: int | None) -> None:
        self._chunks = ChunkedDecoder() if length is None else None
        self.left = length or 0
        self.size = 0

    def take(self, data: bytes) -> tuple[list[bytes], bytes, bool]:
        """Returns pieces of the body, the bytes after it, and whether it is complete.

        Raises HttpViolation.
        """
        if self._chunks is not None:
            pieces = self._chunks.feed(data)
            self.size += sum(map(len, pieces))
            return pieces, self._chunks.rest, self._chunks.complete
        rest, data = data[self.left :], data[: self.left]
        self.left -= len(data)
        self.size += len(data)
        return [data] if data else [], rest, not self.left

    def skip(self, data: bytes) -> bytes | None:
        """Returns the bytes after the body, None unless its length is known and `data` contains its end."""
        return None if self.length_unknown or len(data) < self.left else data[self.left :]

    @property
    def length_unknown(self) -> bool:
        """Whether the remaining length is unknown, which it is for an incomplete chunked body."""
        return self._chunks is not None and not self._chunks.complete


def _malformed(message: str) -> HttpViolation:
    return HttpViolation(HTTPStatus.BAD_REQUEST, "malformed", message)
