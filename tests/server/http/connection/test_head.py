"""Heads of requests: how they are interpreted, and which are rejected."""

from __future__ import annotations

import pytest

from polyrec.server.errors import HttpViolation
from polyrec.server.http.connection.head import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_URL_BYTES,
    find_end,
    parse_head,
)

LINE = b"POST /v1/predict HTTP/1.1\r\n"


def test_method_target_headers_and_framing_are_read() -> None:
    head = parse_head(LINE + b"Host: x\r\nX-A: b\r\nContent-Length: 12\r\nContent-Encoding: GZip\r\n\r\n")
    assert (head.method, head.target, head.version) == (b"POST", b"/v1/predict", "1.1")
    assert head.headers[1] == (b"x-a", b"b")
    assert (head.length, head.encoding, head.keep_alive, head.expects_continue) == (12, "gzip", True, False)


@pytest.mark.parametrize(
    ("more", "length", "keep_alive", "expects_continue"),
    [
        (b"", 0, True, False),
        (b"Transfer-Encoding: Chunked\r\n", None, True, False),
        (b"Content-Length: 3\r\nConnection: Close\r\n", 3, False, False),
        (b"Content-Length: 3\r\nConnection: keep-alive, close\r\n", 3, False, False),
        (b"Content-Length: 3\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", 3, True, False),
        (b"Transfer-Encoding: chunked\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", None, True, False),
        (b"Content-Length: 3\r\nExpect: 100-Continue\r\n", 3, True, True),
    ],
)
def test_the_body_is_framed_as_http_says(
    more: bytes, length: int | None, keep_alive: bool, expects_continue: bool
) -> None:
    head = parse_head(LINE + b"Host: x\r\n" + more + b"\r\n")
    assert (head.length, head.keep_alive, head.expects_continue) == (length, keep_alive, expects_continue)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 400),
        (LINE + b"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (LINE + b"Host: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (LINE + b"Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (LINE + b"Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400),
        (LINE + b"Host: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", 400),
        (LINE + b"Host: x\r\nContent-Length: +5\r\n\r\n", 400),
        (LINE + b"Host: x\r\nContent-Length: -5\r\n\r\n", 400),
        (LINE + b"Host: x\r\nContent-Length: 5, 5\r\n\r\n", 400),
        (LINE + b"Host: x\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n", 400),
        (LINE + b"Host: x\r\nExpect: more\r\n\r\n", 417),
        (LINE + b"Host: x\r\nX : 1\r\n\r\n", 400),
        (LINE + b"Host: x\r\nX: a\r\n b\r\n\r\n", 400),
        (LINE + b"Host: x\r\nX: \0\r\n\r\n", 400),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"GET /" + b"a" * MAX_URL_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (LINE + b"Host: x\r\n" + b"a:\r\n" * MAX_HEADERS + b"\r\n", 431),
    ],
)
def test_invalid_http_is_rejected_with_a_specific_status(head: bytes, status: int) -> None:
    with pytest.raises(HttpViolation) as caught:
        parse_head(head)
    assert caught.value.status == status


def test_the_end_of_a_head_is_found_once_it_is_there() -> None:
    head = LINE + b"Host: x\r\n\r\n"
    assert [find_end(head[:n]) for n in range(1, len(head))] == [-1] * (len(head) - 1)
    assert find_end(head) == find_end(head + b"GET / HTTP/1.1\r\n\r\n") == len(head)


@pytest.mark.parametrize("cut", [0, 100])
def test_a_head_that_can_only_become_too_large_is_rejected_before_its_end(cut: int) -> None:
    for data, status in (
        (b"GET /" + b"a" * (MAX_URL_BYTES + 40), 414),
        (LINE + b"x: " + b"y" * MAX_HEAD_BYTES, 431),
        (LINE + b"x: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"\x16\x03\x01", 400),
    ):
        with pytest.raises(HttpViolation) as caught:
            find_end(data + b"z" * cut)
        assert caught.value.status == status
