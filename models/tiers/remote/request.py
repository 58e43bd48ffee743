"""Sends a request for rows to one server, and reads its replies as they arrive.

Sockets are read directly: redis-py's read_response takes 2 microseconds per reply, ten times as long as
hiredis. Each use of a connection sets its socket's timeout, and none restores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from socket import socket
from ssl import SSLWantReadError
from typing import Any

import numpy as np
from hiredis import Reader, pack_command
from redis.connection import Connection

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.remote.cluster import ServerRows
from polyrec.models.tiers.remote.fetched import store_clock
from polyrec.models.tiers.slab import Bytes

READ_BYTES = 1 << 16
REPLY_BYTES = 512
"""Maximum bytes of a reply without its row: most are a few, an error has a sentence."""


@dataclass(slots=True, eq=False)
class ServerRequest:
    """A request sent to one server.

    expected: number of replies expected. bytes_left: bytes that may still come; a larger value is not read to
    its end. replies: replies so far, including ReplyErrors. failure: why no more will come.
    """

    part: ServerRows
    connection: Connection
    expected: int
    bytes_left: int
    replies: list[Any] = field(default_factory=list)
    failure: Exception | None = None
    reader: Reader = field(default_factory=Reader)

    @property
    def receiver(self) -> socket:
        """The connection's socket."""
        return _socket(self.connection)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to read."""
        return self.failure is not None or len(self.replies) >= self.expected

    def read(self, timeout_s: float) -> bool:
        """Reads once. Returns False if nothing arrived and timeout_s is 0; otherwise a timeout fails the
        request.
        """
        receiver, reader, replies = self.receiver, self.reader, self.replies
        try:
            _set_timeout(receiver, timeout_s)
            data = receiver.recv(READ_BYTES)
            if not data:
                raise OSError("the connection was closed")
            self.bytes_left -= len(data)
            if self.bytes_left < 0:
                raise OSError("it sent more bytes than rows have")
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                replies.append(reply)
            if len(replies) > self.expected or (len(replies) == self.expected and reader.has_data()):
                raise OSError("it sent more replies than it was asked for")
        except (BlockingIOError, SSLWantReadError):
            return False
        # hiredis also raises MemoryError and TypeError for what is no reply of Redis
        except Exception as e:
            self.fail(e)
        return True

    def fail(self, error: Exception) -> None:
        """Ends the request; closes its connection, on which replies may follow."""
        self.connection.disconnect()
        self.failure = error


def send_commands(
    part: ServerRows,
    connection: Connection,
    commands: Sequence[tuple[bytes, ...]],
    row_bytes: int,
    at_once: bool = False,
) -> ServerRequest:
    """Sends all commands in one write. row_bytes: of each reply. Raises OSError or RedisError.

    at_once: sends without waiting what must fit the socket's buffer.
    """
    asking = pack_command((b"ASKING",)) if part.asking else b""
    data = b"".join([asking + pack_command(command) for command in commands])
    if at_once:
        _send_at_once(connection, data)
    else:
        _set_timeout(_socket(connection), connection.socket_timeout)
        connection.send_packed_command([data])
    max_bytes = READ_BYTES + len(part.rows) * (row_bytes + REPLY_BYTES)
    return ServerRequest(part, connection, len(commands) * (2 if part.asking else 1), max_bytes)


def replies_of(request: ServerRequest, until_s: float) -> tuple[list[Any], Exception | None]:
    """Returns the replies that arrive in time, and why others did not."""
    while not request.ended:
        # what has arrived when the time is over is still read, but nothing is waited for
        if not request.read(max(until_s - store_clock(), 0.0)):
            request.fail(TimeoutError("timed out"))
    replies = request.replies[1::2] if request.part.asking else request.replies
    # an MGET has one reply
    return replies[0] if replies and isinstance(replies[0], list) else replies, request.failure


def values_of(rows: Sequence[int], replies: Sequence[Any], size: int) -> tuple[I64, Bytes]:
    """Returns the rows whose replies are values of `size` bytes: (int64 [n], uint8 [n, size]).

    rows: the rows asked for, in the order of the replies.
    """
    all_came = len(replies) == len(rows) and set(map(type, replies)) == {bytes}
    if not all_came or set(map(len, replies)) != {size}:
        pairs = zip(rows, replies, strict=False)
        values = {i: reply for i, reply in pairs if type(reply) is bytes and len(reply) == size}
        rows, replies = list(values), list(values.values())
    there = np.arange(rows.start, rows.stop) if isinstance(rows, range) else np.array(rows, np.int64)
    return there, np.frombuffer(b"".join(replies), np.uint8).reshape(-1, size)


def _socket(connection: Connection) -> socket:
    """Returns a connection's socket, TLS or plain, for which redis-py has no public name."""
    found: socket = connection._sock
    return found


def _set_timeout(used: socket, timeout_s: float | None) -> None:
    """Sets a socket's timeout, which is a system call also if it has that timeout already."""
    if used.gettimeout() != timeout_s:
        used.settimeout(timeout_s)


def _send_at_once(connection: Connection, data: bytes) -> None:
    """Sends data that the socket's buffer must hold. Raises OSError after closing the connection."""
    used = _socket(connection)
    try:
        _set_timeout(used, 0.0)
        if used.send(data) < len(data):
            raise OSError("the buffer of its socket is full")
    except OSError:
        connection.disconnect()
        raise
