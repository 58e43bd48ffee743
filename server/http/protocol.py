"""uvicorn's HTTP/1.1 protocol with the limits that a public promise needs.

uvicorn bounds neither a request's headers nor what a client goes on sending after it was refused, and
it answers what is not HTTP in plain text. Here headers are bounded (431), refused bodies are read and
dropped up to a bound, so that the client finishes sending and reads its answer, and every error is
JSON.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from server.errors import error_body

MAX_HEADER_BYTES = 64 * 2**10
MAX_DROPPED_BYTES = 256 * 2**20


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._header_bytes = 0
        self._in_headers = True
        self._dropped_bytes = 0

    def data_received(self, data: bytes) -> None:
        # Counted by what arrives, not by the parser's callbacks: those come only with a complete line.
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the request's headers exceed {MAX_HEADER_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._in_headers = True

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > MAX_DROPPED_BYTES:
                self.transport.close()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._header_bytes = 0
        self._in_headers = True

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "the request is not valid HTTP/1.1")

    def _refuse(self, status: int, message: str) -> None:
        """Only where no application has the request yet."""
        body = error_body(message)
        self.transport.write(
            b"%scontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (STATUS_LINE[status], len(body), body)
        )
        self.transport.close()
