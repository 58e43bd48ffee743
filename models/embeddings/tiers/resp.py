"""Redis's protocol (RESP2), as far as rows need it, in whole arrays.

Keys of a table have one length and rows have one length, so a request for any number of rows is a matrix of
bytes, and so is its answer as long as every row is there; only missing rows are met one by one. A client
library makes a Python object of every key and every value (`redis-py`: 6 microseconds a row, docs/tiers.md).
"""

from __future__ import annotations

import socket
import time
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from models.batch import I64
from models.embeddings.tiers.slab import Bytes

DIGITS = 12
"""Of an id in a key, zero-padded."""

clock = time.monotonic


class RespError(OSError):
    """The server answered what it should not, or said that something is wrong."""


def keys(prefix: str, ids: I64) -> Bytes:
    """`prefix` and the id in DIGITS digits: uint8 [n, len(prefix) + DIGITS]."""
    head = np.frombuffer(prefix.encode(), np.uint8)
    out = np.empty((ids.size, head.size + DIGITS), np.uint8)
    out[:, : head.size] = head
    powers = 10 ** np.arange(DIGITS - 1, -1, -1)
    out[:, head.size :] = ids[:, None] // powers % 10 + ord("0")
    return out


def bulks(values: Bytes) -> Bytes:
    """uint8 [n, size] -> the same as bulk strings, uint8 [n, size and its frame]."""
    head = np.frombuffer(b"$%d\r\n" % values.shape[1], np.uint8)
    out = np.empty((len(values), head.size + values.shape[1] + 2), np.uint8)
    out[:, : head.size] = head
    out[:, head.size : -2] = values
    out[:, -2:] = (13, 10)
    return out


def command(name: bytes, *arguments: Bytes) -> bytes:
    """A command whose arguments are the rows of matrices, taken by turns: key, value, key, value, ..."""
    count = 1 + sum(len(a) for a in arguments)
    body = np.concatenate([bulks(a) for a in arguments], axis=1) if arguments else np.empty(0, np.uint8)
    return b"*%d\r\n$%d\r\n%s\r\n" % (count, len(name), name) + body.tobytes()


class Link:
    """One connection. Raises OSError (time-outs included) whenever it is of no more use."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """url: redis://[:password@]host[:port][/database], or unix:///path."""
        parts = urlsplit(url)
        if parts.scheme == "unix":
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(timeout_s)
            self._socket.connect(parts.path)
        else:
            self._socket = socket.create_connection((parts.hostname or "", parts.port or 6379), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 16)
        self._filled = 0
        self._deadline_s = 0.0
        try:
            if parts.password:
                self.simple(b"AUTH", unquote(parts.password).encode(), timeout_s=timeout_s)
            if parts.path.strip("/") and parts.scheme != "unix":
                self.simple(b"SELECT", parts.path.strip("/").encode(), timeout_s=timeout_s)
            self.simple(b"PING", timeout_s=timeout_s)
        except OSError:
            self.close()
            raise

    def send(self, data: bytes, timeout_s: float) -> None:
        """Sends; what is received afterwards has `timeout_s` in all."""
        self._deadline_s = clock() + timeout_s
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)
        self._filled = 0

    def rows(self, out: Bytes, found: NDArray[np.bool_], place: int = 0, array: bool = True) -> int:
        """Reads `len(out)` bulk strings into out [n, size]; gives the place behind them in the buffer.

        found [n]: which were there. A value of another length counts as not there. array: they come as one
        array (MGET), else one after the other (GETs).
        """
        size = out.shape[1]
        head = np.frombuffer(b"$%d\r\n" % size, np.uint8)
        record = head.size + size + 2
        if array:
            line, place = self._line(place)
            if line != b"*%d" % len(out):
                raise RespError(f"the store answered {line[:80]!r}")
        done = 0
        while done < len(out):
            whole = min((self._filled - place) // record, len(out) - done)
            if whole > 0:
                seen = np.frombuffer(self._buffer, np.uint8, whole * record, place).reshape(whole, record)
                wrong = np.flatnonzero((seen[:, : head.size] != head).any(axis=1))
                good = int(wrong[0]) if wrong.size else whole
                out[done : done + good] = seen[:good, head.size : -2]
                found[done : done + good] = True
                done += good
                place += good * record
                del seen
                if good:
                    continue
            elif self._starts(place, bytes(head)):
                self._receive(place + record * (len(out) - done))
                continue
            line, after = self._line(place)
            if line[:1] != b"$":
                raise RespError(f"the store answered {line[:80]!r}")
            length = int(line[1:])
            if length == size:
                self._receive(place + record)
                continue
            place = after if length < 0 else after + length + 2
            self._receive_all(place)
            found[done] = False
            done += 1
        return place

    def simple(self, *words: bytes, timeout_s: float) -> bytes:
        """A command that is answered in one line. Raises RespError if that is an error."""
        parts = b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        self.send(b"*%d\r\n%s" % (len(words), parts), timeout_s)
        return self.line()

    def line(self) -> bytes:
        """One line of an answer, without its mark. Raises RespError if it is an error."""
        line, _ = self._line(0)
        if line[:1] == b"-":
            raise RespError(f"the store answered {line.decode(errors='replace')}")
        return line[1:]

    def close(self) -> None:
        self._socket.close()

    def _starts(self, place: int, with_: bytes) -> bool:
        """Whether the answer goes on with these bytes, as far as it has come."""
        self._receive_all(place + 1)
        come = bytes(self._buffer[place : min(self._filled, place + len(with_))])
        return with_.startswith(come)

    def _line(self, place: int) -> tuple[bytes, int]:
        while (end := self._buffer.find(b"\r\n", place, self._filled)) < 0:
            self._receive(self._filled + 1)
        return bytes(self._buffer[place:end]), end + 2

    def _receive_all(self, upto: int) -> None:
        while self._filled < upto:
            self._receive(upto)

    def _receive(self, upto: int) -> None:
        """Some more; the buffer is made to hold `upto` bytes."""
        if upto > len(self._buffer):
            self._buffer.extend(bytes(max(upto, 2 * len(self._buffer)) - len(self._buffer)))
        left = self._deadline_s - clock()
        if left <= 0:
            raise TimeoutError("the store did not answer in time")
        self._socket.settimeout(left)
        with memoryview(self._buffer) as view:
            count = self._socket.recv_into(view[self._filled :])
        if not count:
            raise RespError("the store closed the connection")
        self._filled += count
