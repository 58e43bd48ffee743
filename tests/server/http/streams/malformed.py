"""Requests that are not HTTP/1.1, or that a server must not interpret, with the statuses they may get.

After each of them the connection has to be closed: where the next request begins is not known. The statuses
are those of RFC 9110 and 9112 and of DESIGN.md; a set of several where the RFC leaves a choice.
"""

from __future__ import annotations

from random import Random

from tests.server.http.streams.asks import SMUGGLED, Ask, Ending, Expected

BODY = b'{"instances": [{}]}'
LONG = 70_000
"""Bytes past every limit on a head or a URL."""

_GET = b"GET /livez HTTP/1.1\r\n"
_POST = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\n"
_CHUNKS = b"13\r\n" + BODY + b"\r\n0\r\n\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"

LINES: tuple[tuple[bytes, set[int]], ...] = (
    (b"hello\r\n\r\n", {400}),
    (b"\x16\x03\x01\x02\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    (b"GET /livez\r\n\r\n", {400, 505}),
    (b"GET /livez HTTP/0.9\r\nHost: x\r\n\r\n", {400, 505}),
    (b"GET /livez HTTP/2.0\r\nHost: x\r\n\r\n", {505}),
    (b"POST /v1/predict HTTP/2.0\r\nHost: x\r\nContent-Length: 19\r\n\r\n" + BODY, {505}),
    (b"POST /v1/predict HTTP/0.9\r\nHost: x\r\nContent-Length: 19\r\n\r\n" + BODY, {400, 505}),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
    (b"GET /livez HTTP/9.9\r\nHost: x\r\n\r\n", {400, 505}),
    (b"GET /livez HTTP/1.1.1\r\nHost: x\r\n\r\n", {400, 505}),
    (b"GET /livez HTP/1.1\r\nHost: x\r\n\r\n", {400}),
    (b"GET /li vez HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    (b"GET /li\x00vez HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    (b"get /livez HTTP/1.1\r\nHost: x\r\n\r\n", {400, 405, 501}),
    (b"GET HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
)
FIELDS: tuple[tuple[bytes, set[int]], ...] = (
    (_GET + b"\r\n", {400}),
    (_GET + b"Accept: */*\r\n\r\n", {400}),
    (_GET + b"Host: x\r\nHost: x\r\n\r\n", {400}),
    (_GET + b"Host: x\r\nAccept: */*\r\nhost: y\r\n\r\n", {400}),
    (b"POST /v1/predict HTTP/1.1\r\nContent-Length: 19\r\n\r\n" + BODY, {400}),
    (_POST + b"Host: y\r\nContent-Length: 19\r\n\r\n" + BODY, {400}),
    (_GET + b"Host: x\r\nNo-Colon\r\n\r\n", {400}),
    (_GET + b"Host: x\r\nBad Name: y\r\n\r\n", {400}),
    (_GET + b"Host : x\r\n\r\n", {400}),
    (_GET + b"Host: x\r\n: empty\r\n\r\n", {400}),
    (_GET + b"Host: x\r\nX-Nul: a\x00b\r\n\r\n", {400}),
    (_GET + b"Host: x\r\nX-Long: " + b"y" * LONG + b"\r\n\r\n", {431}),
    (_GET + b"Host: x\r\n" + b"x-junk: yyyyyyyy\r\n" * (LONG // 18) + b"\r\n", {431}),
    (b"GET /" + b"y" * LONG + b" HTTP/1.1\r\nHost: x\r\n\r\n", {414}),
    (b"POST /v1/rank?" + b"y" * LONG + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", {414}),
)
LENGTHS: tuple[tuple[bytes, set[int]], ...] = (
    *(
        (_POST + b"Content-Length: " + length + b"\r\n\r\n" + BODY, {400})
        for length in (b"-19", b"+19", b"0x13", b"19, 19", b"19, 5", b"1 9", b"", b"nineteen", b"19.0")
    ),
    (_POST + b"Content-Length: 19\r\nContent-Length: 5\r\n\r\n" + BODY, {400}),
    (_POST + b"Content-Length: 19\r\ncontent-length: 19\r\n\r\n" + BODY, {400}),
    (_POST + b"Content-Length: " + b"9" * 25 + b"\r\n\r\n" + BODY, {400, 413}),
)
CODINGS: tuple[tuple[bytes, set[int]], ...] = (
    *(
        (_POST + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + _CHUNKS, statuses)
        for coding, statuses in (
            (b"gzip, chunked", {501}),
            (b"gzip", {501}),
            (b"identity", {501}),
            (b"xchunked", {501}),
            (b"chunked, gzip", {400, 501}),
            (b"chunked, chunked", {400, 501}),
            (b"\x0bchunked", {400, 501}),
        )
    ),
    (_POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + _CHUNKS, {400}),
    (_POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKS, {400}),
    (
        _POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKS,
        {501},
    ),
    (_GET + b"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", {501}),
)
CHUNKS: tuple[tuple[bytes, set[int]], ...] = (
    (_CHUNKED + b"zz\r\n" + BODY + b"\r\n0\r\n\r\n", {400}),
    (_CHUNKED + b"-13\r\n" + BODY + b"\r\n0\r\n\r\n", {400}),
    (_CHUNKED + b"5\r\n" + BODY + b"\r\n0\r\n\r\n", {400}),
    (_CHUNKED + b"0x13\r\n" + BODY + b"\r\n0\r\n\r\n", {400}),
    (_CHUNKED + b"f" * 20 + b"\r\n" + BODY, {400, 413}),
    (_CHUNKED + b"13\r\n" + BODY + b"\r\n0\r\nX-Long: " + b"y" * LONG + b"\r\n\r\n", {400, 413, 431}),
)
KINDS = (("line", LINES), ("field", FIELDS), ("length", LENGTHS), ("coding", CODINGS), ("chunk", CHUNKS))


def malformed(random: Random) -> Ask:
    """One of the table; bytes that look like another request may follow, and must not be answered."""
    kind, table = random.choice(KINDS)
    raw, statuses = random.choice(table)
    if random.random() < 0.4:
        raw += SMUGGLED
    return Ask(kind, raw, len(raw), Expected(None, frozenset(statuses), "close"), "GET")


def unknown_method(random: Random) -> Ask:
    """A method that no page has; the connection may go on or end."""
    method = random.choice((b"BREW", b"CONNECT", b"TRACE"))
    target = b"x:443" if method == b"CONNECT" else b"/livez"
    raw = method + b" " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    ending: Ending = "either"
    expected = Expected(None, frozenset({400, 404, 405, 501}), ending)
    return Ask("method", raw, len(raw), expected, method.decode())
