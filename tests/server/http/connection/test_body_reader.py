"""Chunked bodies against httptools' reading of them, however they are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from httptools import HttpParserError, HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from polyrec.server.errors import HttpViolation
from polyrec.server.http.connection.body_reader import (
    FREE_CHUNKS,
    MAX_LINE_BYTES,
    MAX_TRAILER_BYTES,
    ChunkedDecoder,
)


class Reference:
    """Decodes a chunked body with httptools."""

    def __init__(self, data: bytes) -> None:
        self.body = b""
        self.complete = False
        parser = HttpRequestParser(self)
        parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


def decoded(data: bytes, places: list[int]) -> tuple[bytes, bytes, bool]:
    """(body, what follows it, whether it is complete), fed in the pieces that `places` cut."""
    at = sorted({p % (len(data) + 1) for p in places} | {0, len(data)})
    decoder, body, rest = ChunkedDecoder(), b"", b""
    for a, b in pairwise(at):
        if decoder.complete:
            rest += data[a:b]
        else:
            body += b"".join(decoder.feed(data[a:b]))
            rest = decoder.rest
    return body, rest, decoder.complete


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    extension=st.sampled_from([b"", b";a=b", b";x"]),
    upper=st.booleans(),
    trailer=st.sampled_from([b"", b"x: y\r\n"]),
    rest=st.sampled_from([b"", b"GET / HTTP/1.1\r\n\r\n", b"\r\n"]),
    places=st.lists(st.integers(0, 400), max_size=6),
)
def test_a_chunked_body_is_what_httptools_reads_however_it_is_cut(
    chunks: list[bytes], extension: bytes, upper: bool, trailer: bytes, rest: bytes, places: list[int]
) -> None:
    size = b"%X" if upper else b"%x"
    data = b"".join(size % len(c) + extension + b"\r\n" + c + b"\r\n" for c in chunks)
    data += b"0" + extension + b"\r\n" + trailer + b"\r\n"
    expected = Reference(data)
    assert expected.complete
    assert decoded(data + rest, places) == (expected.body, rest, True) == (b"".join(chunks), rest, True)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_bodies_are_read_as_by_httptools_however_they_are_cut(data: bytes, places: list[int]) -> None:
    def outcome(cuts: list[int]) -> tuple[bytes, bytes, bool] | None:
        try:
            return decoded(b"3\r\nabc\r\n" + data, cuts)
        except HttpViolation:
            return None

    whole = outcome([])
    assert outcome(places) == whole
    if whole is not None and whole[2]:
        Reference(b"3\r\nabc\r\n" + data[: len(data) - len(whole[1])])


@pytest.mark.parametrize(
    "data",
    [b"x\r\n", b"\r\n", b"-1\r\n", b"+3\r\nabc", b"0x3\r\nabc", b"3\r\nabcd\r\n", b"3\nabc\r\n",
     b"3\r\nabc\rX",
     b"f" * 13 + b"\r\n", b"1" + b";" * MAX_LINE_BYTES, b"0\r\n" + b"a: b\r\n" * MAX_TRAILER_BYTES],
)  # fmt: skip
def test_malformed_chunks_are_rejected(data: bytes) -> None:
    for cuts in ([], list(range(0, min(len(data), 300)))):
        with pytest.raises(HttpViolation):
            decoded(data, cuts)


def test_many_small_chunks_are_rejected_and_many_of_ordinary_size_are_not() -> None:
    with pytest.raises(HttpViolation, match="chunks"):
        decoded(b"1\r\na\r\n" * (FREE_CHUNKS + 10), [])
    few = b"1\r\na\r\n" * (FREE_CHUNKS - 1) + b"0\r\n\r\n"
    assert decoded(few, []) == (b"a" * (FREE_CHUNKS - 1), b"", True)
    large = (b"400\r\n" + b"a" * 1024 + b"\r\n") * (4 * FREE_CHUNKS) + b"0\r\n\r\n"
    assert decoded(large, [])[2]
    with pytest.raises(HttpViolation, match="trailer"):
        decoded(b"0\r\n" + b"a:\r\n" * 300 + b"\r\n", [])


def test_the_reference_refuses_too() -> None:
    with pytest.raises(HttpParserError):
        Reference(b"x\r\n")
