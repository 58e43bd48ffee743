"""A blocking client of one connection that sends any bytes and reads answers one by one."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any

PATIENCE_S = 20.0
"""A server that owes an answer, or the end of the connection, for so long has forgotten it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """headers: names in lower case; of several of one name the last."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Talk:
    """One connection to `url`. Use as a context."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""

    def __enter__(self) -> Talk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, *pieces: bytes) -> Talk:
        for piece in pieces:
            self._socket.sendall(piece)
        return self

    def answer(self, method: str = "POST") -> Answer:
        """The next answer, 100 (Continue) among them. Raises AssertionError if the connection ends first."""
        while b"\r\n\r\n" not in self._data:
            self._more()
        top, _, self._data = self._data.partition(b"\r\n\r\n")
        line, *lines = top.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (given.partition(":") for given in lines)
        }
        status = int(line.split()[1])
        size = 0 if method == "HEAD" or status < 200 else int(headers["content-length"])
        while len(self._data) < size:
            self._more()
        body, self._data = self._data[:size], self._data[size:]
        return Answer(status, headers, body)

    def ask(self, raw: bytes, method: str = "POST") -> Answer:
        """Sends a request and reads its answer."""
        return self.send(raw).answer(method)

    def ended(self, within_s: float = PATIENCE_S) -> bool:
        """Whether the server closes, and says nothing more before it does."""
        self._socket.settimeout(within_s)
        try:
            return not self._data and not self._socket.recv(1)
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def _more(self) -> None:
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            raise AssertionError(f"no answer within {PATIENCE_S:g} s; so far {self._data!r}") from None
        assert data, f"the connection ended; so far {self._data!r}"
        self._data += data


def post(target: str, body: bytes, *headers: bytes) -> bytes:
    """A request in the ordinary way. headers: whole lines."""
    lines = [b"POST %s HTTP/1.1" % target.encode(), b"Host: x", *headers, b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*lines, b"", body])


def get(target: str, *headers: bytes, method: str = "GET") -> bytes:
    """A request without a body."""
    return b"\r\n".join([f"{method} {target} HTTP/1.1".encode(), b"Host: x", *headers, b"", b""])
