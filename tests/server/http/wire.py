"""Both ends of what is asked directly: a client's connection, and one that a direct answer writes to."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field

from uvicorn.server import ServerState

from server.http.direct import Direct
from server.running import Child


@dataclass
class Wire:
    """A connection to a server, made again once it was closed."""

    server: Child
    connection: socket.socket | None = field(default=None)

    def ask(self, pieces: list[bytes]) -> tuple[bytes, bytes, bool]:
        """Head without its date, body, whether the connection is still good."""
        if self.connection is None:
            host, port = self.server.url.removeprefix("http://").split(":")
            self.connection = socket.create_connection((host, int(port)), timeout=60)
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            self.connection.sendall(piece)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        head, _, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        while len(body) < int(length[1]):
            body += self._more()
        open_ = b"connection: close" not in head
        if not open_:
            assert self.connection.recv(1) == b""
            self.close()
        return re.sub(rb"date: [^\r]*", b"", head), body, open_

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _more(self) -> bytes:
        assert self.connection is not None
        data = self.connection.recv(65536)
        assert data
        return data


class Connection:
    """What a direct answer writes to."""

    def __init__(self) -> None:
        self.server_state = ServerState()
        self.sent = b""
        self.ends = 0

    def send(self, data: bytes) -> None:
        self.sent += data

    def ended(self, direct: Direct) -> None:
        self.ends += 1
