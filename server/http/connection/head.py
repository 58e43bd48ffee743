"""Parses and validates the head of one HTTP/1.1 request, and decides how its body is framed.

connection.py passes the bytes up to and including the blank line, and gets a `Head` or an `HttpViolation`. A
head is parsed only once it is complete and with a new parser, so the result depends on its bytes alone, not
on TCP segmentation, the connection or earlier requests. Framing follows RFC 9112, section 6; body_reader.py
then reads the body.
"""

from __future__ import annotations

from http import HTTPStatus

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from polyrec.server.errors import HttpViolation

MAX_HEAD_BYTES = 32 * 2**10
MAX_URL_BYTES = 8 * 2**10
MAX_HEADERS = 256
MAX_LENGTH_DIGITS = 15
FRAMING = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"connection", b"expect", b"content-encoding"}
)
REQUEST_ID = b"x-request-id"
_NOTED = FRAMING | {REQUEST_ID}
END = b"\r\n\r\n"
_REQUEST_LINE_BYTES = MAX_URL_BYTES + 32
"""Maximum length of the request line: the URL plus the longest method and the version."""


class Head:
    """One request's method, target and headers, and the framing of its body.

    target: as sent, including the query.
    headers: with lower-case names.
    length: bytes of the body, None if it is chunked.
    encoding: lower-case Content-Encoding, or None.
    keep_alive: whether the client may send more requests.
    """

    __slots__ = (
        "_framing", "complete", "encoding", "expects_continue", "headers", "keep_alive", "length", "method",
        "target", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.complete = False
        self.expects_continue = False
        self.encoding: str | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True
        self.length: int | None = 0
        self.method = self.target = b""
        self.version = ""
        self._framing: dict[bytes, list[bytes]] = {}

    # callbacks of httptools

    def on_url(self, url: bytes) -> None:
        self.target = url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name in _NOTED:
            self._framing.setdefault(name, []).append(value)

    def on_headers_complete(self) -> None:
        self.complete = True

    @property
    def given_id(self) -> bytes | None:
        """The client's X-Request-Id, None unless there is exactly one."""
        given = self._framing.get(REQUEST_ID)
        return given[0] if given is not None and len(given) == 1 else None

    def check(self) -> None:
        """Validates version and framing headers and sets the body's framing. Raises HttpViolation."""
        framing = self._framing
        if self.version not in ("1.1", "1.0"):
            raise HttpViolation(
                HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
                "version",
                f"HTTP/{self.version} is not supported; use HTTP/1.1",
            )
        hosts = len(framing.get(b"host", ()))
        if hosts > 1 or (not hosts and self.version == "1.1"):
            raise _malformed(f"a request has exactly one Host header; this one has {hosts}")
        if self.method == b"CONNECT":
            raise HttpViolation(HTTPStatus.NOT_IMPLEMENTED, "method", "method CONNECT is not implemented")
        self.length = self._length()
        if b"connection" in framing:
            options = b",".join(framing[b"connection"]).lower().split(b",")
            self.keep_alive = all(option.strip() != b"close" for option in options)
        if self.version == "1.0":
            self.keep_alive = False
        if b"expect" in framing and self.version == "1.1":
            if framing[b"expect"][0].lower() != b"100-continue":
                raise HttpViolation(
                    HTTPStatus.EXPECTATION_FAILED, "expect", "header Expect may only be '100-continue'"
                )
            self.expects_continue = True
        if b"content-encoding" in framing:
            self.encoding = framing[b"content-encoding"][-1].decode("latin-1").strip().lower()

    def _length(self) -> int | None:
        transfers = self._framing.get(b"transfer-encoding")
        if transfers is not None:
            if len(transfers) > 1 or transfers[0].lower() != b"chunked":
                raise HttpViolation(
                    HTTPStatus.NOT_IMPLEMENTED,
                    "transfer_encoding",
                    "the only Transfer-Encoding that is implemented is 'chunked'",
                )
            return None
        lengths = self._framing.get(b"content-length")
        if lengths is None:
            return 0
        if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > MAX_LENGTH_DIGITS:
            raise _malformed("header Content-Length is not a number of bytes")
        return int(lengths[0])


def find_end(data: bytes) -> int:
    """Returns the length of the head at the start of `data`, -1 if it is not complete yet.

    Raises HttpViolation as soon as no continuation of the bytes can be a valid head.

    data: begins with the request line.
    """
    end = data.find(END)
    if 0 <= end < MAX_URL_BYTES and data[:1].isalpha():
        return end + len(END)  # short enough to be within every limit
    line = data.find(b"\n", 0, _REQUEST_LINE_BYTES)
    if line < 0 and len(data) >= _REQUEST_LINE_BYTES:
        raise HttpViolation(
            HTTPStatus.REQUEST_URI_TOO_LONG, "url_bytes", f"the URL has more than {MAX_URL_BYTES} bytes"
        )
    if len(data) > MAX_HEAD_BYTES and not 0 <= end <= MAX_HEAD_BYTES - len(END):
        raise HttpViolation(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            "head_bytes",
            f"the request's head has more than {MAX_HEAD_BYTES} bytes",
        )
    if not data[:1].isalpha():
        raise _malformed()
    return end if end < 0 else end + len(END)


def parse_head(data: bytes) -> Head:
    """Parses a complete head. data: from the request line to the blank line. Raises HttpViolation."""
    if data.count(b"\n") > MAX_HEADERS + 2:
        raise HttpViolation(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            "head_bytes",
            f"the request has more than {MAX_HEADERS} headers",
        )
    head = Head()
    parser = HttpRequestParser(head)
    broken = False
    try:
        parser.feed_data(data)
    except HttpParserUpgrade as upgrade:
        broken = upgrade.args[0] != len(data)  # ignore the offered protocol; the body is read as usual
    except HttpParserError:
        broken = True
    if head.complete:
        head.version = parser.get_http_version()
        head.method = parser.get_method()
        head.check()
    elif data.split(b"\r\n", 1)[0].endswith(b" HTTP/2.0"):
        head.version = "2.0"
        head.check()
    if broken or not head.complete:
        raise _malformed()
    if len(head.target) > MAX_URL_BYTES:
        raise HttpViolation(
            HTTPStatus.REQUEST_URI_TOO_LONG, "url_bytes", f"the URL has more than {MAX_URL_BYTES} bytes"
        )
    return head


def _malformed(message: str = "the request is not valid HTTP/1.1") -> HttpViolation:
    return HttpViolation(HTTPStatus.BAD_REQUEST, "malformed", message)
