"""Redis's protocol (RESP2) for rows, with whole-array operations.

All keys of a table have one length and all rows have one length, so a request for any number of rows is a
matrix of bytes, and so is its reply if every row exists; only missing rows and errors are parsed one by one.
A client library makes a Python object of every key and value (`redis-py`: 6 microseconds per row).

Replies are parsed by generators, which yield when they need more bytes: so one thread can read several
servers concurrently (`exchange`), and a blocking call reads one (`call`).
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.remote.login import Login
from polyrec.models.tiers.slab import Bytes

DIGITS = 12
"""Digits of an id in a key, zero-padded."""

Answer: TypeAlias = "bytes | int | list[Answer] | None"
Value = TypeVar("Value")
Reading = Generator[int, None, Value]
"""Yields the buffer size that is needed, each time that more bytes are."""

WAITS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Exceptions of a non-blocking socket that would block."""

clock = time.monotonic


class RespError(OSError):
    """An error reply, or a reply that violates the protocol."""


def keys(prefix: str, ids: I64) -> Bytes:
    """Returns keys, `prefix` and the id in DIGITS digits: uint8 [n, len(prefix) + DIGITS]."""
    head = np.frombuffer(prefix.encode(), np.uint8)
    out = np.empty((ids.size, head.size + DIGITS), np.uint8)
    out[:, : head.size] = head
    powers = 10 ** np.arange(DIGITS - 1, -1, -1)
    out[:, head.size :] = ids[:, None] // powers % 10 + ord("0")
    return out


def bulks(values: Bytes) -> Bytes:
    """Frames values as bulk strings. values: uint8 [n, size]; returns uint8 [n, framed size]."""
    head = np.frombuffer(b"$%d\r\n" % values.shape[1], np.uint8)
    out = np.empty((len(values), head.size + values.shape[1] + 2), np.uint8)
    out[:, : head.size] = head
    out[:, head.size : -2] = values
    out[:, -2:] = (13, 10)
    return out


def command(name: bytes, *arguments: Bytes) -> bytes:
    """Encodes one command; its arguments are the rows of matrices, interleaved: key, value, key,
    value, ...
    """
    count = 1 + sum(len(a) for a in arguments)
    body = np.concatenate([bulks(a) for a in arguments], axis=1) if arguments else np.empty(0, np.uint8)
    return b"*%d\r\n$%d\r\n%s\r\n" % (count, len(name), name) + body.tobytes()


def commands(name: bytes, *arguments: Bytes, asking: bool = False) -> bytes:
    """Encodes one command per row of the matrices. asking: each is preceded by ASKING."""
    head = b"*%d\r\n$%d\r\n%s\r\n" % (1 + len(arguments), len(name), name)
    if asking:
        head = b"*1\r\n$6\r\nASKING\r\n" + head
    first = np.broadcast_to(np.frombuffer(head, np.uint8), (len(arguments[0]), len(head)))
    return np.concatenate([first, *(bulks(a) for a in arguments)], axis=1).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class RowReplies:
    """Replies to a request for rows. values: uint8 [n, size]; found: bool [n].
    errors: (index, message) of rows answered with an error."""

    values: Bytes
    found: NDArray[np.bool_]
    errors: list[tuple[int, bytes]]

    @staticmethod
    def nothing(rows: int, size: int) -> RowReplies:
        return RowReplies(np.empty((rows, size), np.uint8), np.zeros(rows, bool), [])


class Link:
    """One connection. Raises OSError (timeouts included) when it fails; it must then be closed."""

    def __init__(self, url: str, timeout_s: float, login: Login | None = None) -> None:
        """url: redis[s]://host[:port][/database], or unix:///path. login: default: from the URL."""
        parts, login = urlsplit(url), login or Login.of_url(url)
        if parts.scheme == "unix":
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(timeout_s)
            self._socket.connect(parts.path)
        else:
            host = parts.hostname or ""
            self._socket = socket.create_connection((host, parts.port or 6379), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if login.tls is not None:
                # closes the socket if the handshake fails
                self._socket = login.tls.wrap_socket(self._socket, server_hostname=host)
        self._buffer = bytearray(1 << 16)
        self._filled = 0
        try:
            self._log_in(login, timeout_s)
            if parts.path.strip("/") and parts.scheme != "unix":
                self.call(b"SELECT", parts.path.strip("/").encode(), timeout_s=timeout_s)
            self.call(b"PING", timeout_s=timeout_s)
        except OSError:
            self.close()
            raise

    def _log_in(self, login: Login, timeout_s: float) -> None:
        if login.username is None and login.password is None:
            return
        user = [] if login.username is None else [login.username.encode()]
        try:
            self.call(b"AUTH", *user, (login.password or "").encode(), timeout_s=timeout_s)
        except RespError as e:
            # a server may quote the password: only its error code (WRONGPASS, NOAUTH, ERR) is passed on
            code = re.search(r"-([A-Z]+)", str(e))
            raise RespError(f"the store refused AUTH: {code[1] if code else 'no code'}") from None

    def call(self, *words: bytes, timeout_s: float) -> Answer:
        """Sends one command and waits for its reply. Raises RespError for an error reply."""
        deadline_s = clock() + timeout_s
        self._socket.settimeout(timeout_s)
        parts = b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        self._socket.sendall(b"*%d\r\n%s" % (len(words), parts))
        self._filled = 0
        reading = self._answer(0)
        while True:
            try:
                upto = next(reading)
            except StopIteration as e:
                answer: Answer = e.value[0]
                return answer
            left = deadline_s - clock()
            if left <= 0:
                raise TimeoutError("the store did not answer in time")
            self._socket.settimeout(left)
            self.receive(upto)

    def begin(self) -> None:
        """Starts a new reply; from now on `send` and `receive` do not block."""
        self._socket.settimeout(0)
        self._filled = 0

    def send(self, data: memoryview) -> memoryview:
        """Sends without blocking; returns the unsent rest."""
        try:
            return data[self._socket.send(data) :]
        except WAITS:
            return data

    def receive(self, upto: int) -> bool:
        """Receives bytes into the buffer, enlarged to `upto` bytes. Returns False if none are available."""
        if not self._receive(upto):
            return False
        if isinstance(self._socket, ssl.SSLSocket):
            # bytes that are already decrypted do not wake a poll
            while left := self._socket.pending():
                self._receive(self._filled + left)
        return True

    def _receive(self, upto: int) -> bool:
        if upto > len(self._buffer):
            self._buffer.extend(bytes(max(upto, 2 * len(self._buffer)) - len(self._buffer)))
        with memoryview(self._buffer) as view:
            try:
                count = self._socket.recv_into(view[self._filled :])
            except WAITS:
                return False
        if not count:
            raise RespError("the store closed the connection")
        self._filled += count
        return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def rows_of_arrays(self, replies: RowReplies, counts: Sequence[int]) -> Reading[None]:
        """Parses replies of MGETs with these numbers of rows."""
        start = place = 0
        for count in counts:
            line, place = yield from self._line(place)
            if line != b"*%d" % count:
                raise RespError(f"the store answered {_said(line)}")
            place = yield from self._rows(replies, start, start + count, place, 0)
            start += count

    def rows(self, replies: RowReplies, asking: bool = False) -> Reading[None]:
        """Parses replies of GETs, one per row. asking: each is preceded by that of ASKING."""
        yield from self._rows(replies, 0, len(replies.values), 0, int(asking))

    def acknowledged(self, replies: RowReplies, asking: bool = False) -> Reading[None]:
        """Parses replies of SETs, one per row; `found` are the stored ones."""
        yield from self._records(replies, 0, len(replies.found), 0, int(asking), b"+OK\r\n", 0)

    def close(self) -> None:
        self._socket.close()

    def _rows(self, replies: RowReplies, start: int, stop: int, place: int, before: int) -> Reading[int]:
        size = replies.values.shape[1]
        return (yield from self._records(replies, start, stop, place, before, b"$%d\r\n" % size, size))

    def _records(
        self, replies: RowReplies, start: int, stop: int, place: int, before: int, good: bytes, size: int
    ) -> Reading[int]:
        """Parses replies that begin with `good`, followed by `size` bytes, of rows `start` to `stop`.

        Returns the position after them in the buffer. Values of another length count as missing.
        before: number of one-line replies before each of them.
        """
        head = b"+OK\r\n" * before + good
        first = np.frombuffer(head, np.uint8)
        value = slice(len(head), len(head) + size)
        record = len(head) + (size + 2 if size else 0)
        done = start
        while done < stop:
            whole = min((self._filled - place) // record, stop - done)
            if whole > 0:
                seen = np.frombuffer(self._buffer, np.uint8, whole * record, place).reshape(whole, record)
                wrong = np.flatnonzero((seen[:, : len(head)] != first).any(axis=1))
                right = int(wrong[0]) if wrong.size else whole
                if size:
                    replies.values[done : done + right] = seen[:right, value]
                replies.found[done : done + right] = True
                del seen
                done += right
                place += right * record
                if right:
                    continue
            elif head.startswith(self._buffer[place : min(self._filled, place + len(head))]):
                yield place + record * (stop - done)
                continue
            for _ in range(before):
                _, place = yield from self._line(place)
            line, place = yield from self._line(place)
            if line[:1] == b"-":
                replies.errors.append((done, line[1:]))
            elif line[:1] != b"$":
                raise RespError(f"the store answered {_said(line)}")
            elif (length := int(line[1:])) >= 0:
                place += length + 2
                while self._filled < place:
                    yield place
            done += 1
        return place

    def _answer(self, place: int) -> Reading[tuple[Answer, int]]:
        """Parses any reply; returns it and the position after it. Raises RespError for an error reply."""
        line, place = yield from self._line(place)
        mark, rest = line[:1], line[1:]
        if mark == b"-":
            raise RespError(f"the store answered {_said(line)}")
        if mark == b"+":
            return rest, place
        if mark == b":":
            return int(rest), place
        if mark not in (b"$", b"*"):
            raise RespError(f"the store answered {_said(line)}")
        length = int(rest)
        if length < 0:
            return None, place
        if mark == b"$":
            while self._filled < place + length + 2:
                yield place + length + 2
            return bytes(self._buffer[place : place + length]), place + length + 2
        parts: list[Answer] = []
        for _ in range(length):
            part, place = yield from self._answer(place)
            parts.append(part)
        return parts, place

    def _line(self, place: int) -> Reading[tuple[bytes, int]]:
        while (end := self._buffer.find(b"\r\n", place, self._filled)) < 0:
            yield self._filled + 1
        return bytes(self._buffer[place:end]), end + 2


def _said(line: bytes) -> str:
    return line[:80].decode(errors="replace")
