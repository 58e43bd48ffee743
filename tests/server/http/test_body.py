from __future__ import annotations

import asyncio
import gzip
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import Malformed, TooLarge
from server.http.body import ClientGone, compress, decompress, read_body, wanted_compression

LIMIT = 1000


def read(pieces: list[bytes], headers: list[tuple[bytes, bytes]], disconnect: bool = False) -> bytes:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": p, "more_body": disconnect or i + 1 < len(pieces)}
        for i, p in enumerate(pieces)
    ]
    if disconnect:
        messages.append({"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    return asyncio.run(read_body(headers, receive, LIMIT))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6))
def test_pieces_are_joined_up_to_the_limit(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    if len(whole) <= LIMIT:
        assert read(pieces, []) == whole
    else:
        with pytest.raises(TooLarge, match="more than 1000 bytes"):
            read(pieces, [])


def test_a_length_beyond_the_limit_is_refused_before_anything_is_read() -> None:
    with pytest.raises(TooLarge, match="50000000 bytes; the limit is 1000"):
        read([], [(b"content-length", b"50000000")])


def test_a_client_that_leaves_is_noticed() -> None:
    for pieces in ([], [b"x"]):
        with pytest.raises(ClientGone):
            read(pieces, [], disconnect=True)


@given(st.binary(max_size=LIMIT), st.sampled_from(["gzip", "deflate"]))
def test_what_is_compressed_is_decompressed(content: bytes, encoding: str) -> None:
    assert decompress(compress(content, encoding), encoding, LIMIT) == content


def test_deflate_is_read_with_or_without_its_frame() -> None:
    bare = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    for body in (zlib.compress(b"abc" * 50), bare.compress(b"abc" * 50) + bare.flush()):
        assert decompress(body, "deflate", LIMIT) == b"abc" * 50


def test_a_bomb_is_refused_while_it_unpacks() -> None:
    for encoding, body in (("gzip", gzip.compress(b"\0" * 10**8)), ("deflate", zlib.compress(b"\0" * 10**8))):
        with pytest.raises(TooLarge, match="decompresses to more than 1000 bytes"):
            decompress(body, encoding, LIMIT)
    assert decompress(gzip.compress(b"\0" * LIMIT), "gzip", LIMIT) == b"\0" * LIMIT


@pytest.mark.parametrize(
    ("body", "encoding", "says"),
    [
        (gzip.compress(b"abc")[:-1], "gzip", "the gzip body is truncated"),
        (b"", "gzip", "the gzip body is truncated"),
        (b"abc", "gzip", "the body is not gzip"),
        (gzip.compress(b"abc") + b"x", "gzip", "bytes follow the end of the gzip body"),
        (gzip.compress(b"abc") * 2, "gzip", "bytes follow the end of the gzip body"),
        (zlib.compress(b"abc")[:-1], "deflate", "the deflate body is truncated"),
        (b"abc", "br", "Content-Encoding 'br' is not supported"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_refused(body: bytes, encoding: str, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        decompress(body, encoding, LIMIT)


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "identity", "zstd"]))
def test_any_bytes_are_decompressed_or_refused(body: bytes, encoding: str) -> None:
    with suppress(Malformed, TooLarge):
        assert len(decompress(body, encoding, LIMIT)) <= LIMIT


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (None, None),
        (b"", None),
        (b"br", None),
        (b"deflate", "deflate"),
        (b"deflate, gzip", "gzip"),
        (b"GZIP;q=0.5", "gzip"),
        (b"gzip; q=0, deflate", "deflate"),
    ],
)
def test_compression_is_what_the_client_accepts(accepted: bytes | None, chosen: str | None) -> None:
    assert wanted_compression([] if accepted is None else [(b"accept-encoding", accepted)]) == chosen
