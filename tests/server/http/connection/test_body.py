from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polyrec.server.errors import Malformed, TooLarge
from polyrec.server.http.connection.body import (
    MAX_STEP_BYTES,
    MAX_STEP_OUTPUT_BYTES,
    ClientGone,
    Inflater,
    accepted_encoding,
    compress,
    read_body,
)

LIMIT = 1000
NOISE = [Random(n).randbytes(n) for n in range(501)]


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


@given(st.lists(st.integers(0, 500).map(NOISE.__getitem__), min_size=1, max_size=6))
@example([NOISE[500], NOISE[500]])
@example([NOISE[500], NOISE[500], NOISE[1]])
def test_pieces_are_joined_up_to_the_limit(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    if len(whole) <= LIMIT:
        assert read(pieces, []) == whole
    else:
        with pytest.raises(TooLarge, match="more than 1000 bytes"):
            read(pieces, [])


def test_a_length_beyond_the_limit_is_rejected_before_anything_is_read() -> None:
    with pytest.raises(TooLarge, match="50000000 bytes; the limit is 1000"):
        read([], [(b"content-length", b"50000000")])


def test_a_client_that_leaves_is_noticed() -> None:
    for pieces in ([], [b"x"]):
        with pytest.raises(ClientGone):
            read(pieces, [], disconnect=True)


@given(st.binary(max_size=LIMIT), st.sampled_from(["gzip", "deflate"]))
def test_compressed_bodies_are_decompressed(content: bytes, encoding: str) -> None:
    assert inflated([compress(content, encoding)], encoding, LIMIT) == content


def test_deflate_is_read_with_or_without_its_frame() -> None:
    bare = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    for body in (zlib.compress(b"abc" * 50), bare.compress(b"abc" * 50) + bare.flush()):
        assert inflated([body], "deflate", LIMIT, len(body)) == b"abc" * 50


def test_a_bomb_is_rejected_while_it_unpacks() -> None:
    for encoding, body in (("gzip", gzip.compress(b"\0" * 10**8)), ("deflate", zlib.compress(b"\0" * 10**8))):
        with pytest.raises(TooLarge, match="decompresses to more than 1000 bytes"):
            inflated([body], encoding, LIMIT, len(body))
    assert inflated([gzip.compress(b"\0" * LIMIT)], "gzip", LIMIT) == b"\0" * LIMIT


@pytest.mark.parametrize(
    ("body", "encoding", "says"),
    [
        (gzip.compress(b"abc", mtime=0)[:-1], "gzip", "the gzip body is truncated"),
        (b"", "gzip", "the gzip body is truncated"),
        (b"abc", "gzip", "the body is not gzip"),
        (gzip.compress(b"abc", mtime=0) + b"x", "gzip", "bytes follow the end of the gzip body"),
        (gzip.compress(b"abc", mtime=0) * 2, "gzip", "bytes follow the end of the gzip body"),
        (zlib.compress(b"abc")[:-1], "deflate", "the deflate body is truncated"),
        (b"abc", "br", "Content-Encoding 'br' is not supported"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_rejected(body: bytes, encoding: str, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        inflated([body], encoding, LIMIT, len(body))


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "zstd"]))
def test_any_bytes_are_decompressed_or_rejected(body: bytes, encoding: str) -> None:
    with suppress(Malformed, TooLarge):
        assert len(inflated([body], encoding, LIMIT, len(body))) <= LIMIT


def inflated(pieces: list[bytes], encoding: str, limit: int, length: int | None = None) -> bytes:
    inflater = Inflater(encoding, limit, length)
    for piece in pieces:
        inflater.feed(piece)
        while inflater.step():
            pass
    return inflater.finish()


def outcome(pieces: list[bytes], encoding: str, limit: int = 10**6) -> bytes | type[Exception]:
    try:
        return inflated(pieces, encoding, limit)
    except (Malformed, TooLarge) as e:
        return type(e)


@given(
    st.sampled_from([b"", b"abc" * 100, b"\0" * 200_000, b"\0" * 2_000_000, bytes(range(256)) * 600]),
    st.sampled_from(["gzip", "deflate"]),
    st.sampled_from([b"", b"x", b"cut"]),
    st.lists(st.integers(0, 4000), max_size=6),
)
def test_how_a_body_is_cut_changes_nothing(
    content: bytes, encoding: str, end: bytes, cuts: list[int]
) -> None:
    body = compress(content, encoding)
    body = body[:-3] if end == b"cut" else body + end
    places = [0, *sorted(min(c, len(body)) for c in cuts), len(body)]
    pieces = [body[a:b] for a, b in pairwise(places)]
    assert outcome(pieces, encoding) == outcome([body], encoding)
    if not end and len(content) <= 10**6 and len(content) <= 100 * len(body):
        assert outcome(pieces, encoding) == content


def test_a_body_may_not_decompress_to_a_hundred_times_its_size() -> None:
    small, large = gzip.compress(b"\0" * 2**16), gzip.compress(b"\0" * 2**19)
    assert inflated([small], "gzip", 2**20, len(small)) == b"\0" * 2**16
    for length in (None, len(large)):
        with pytest.raises(TooLarge, match="more than 100 times its size"):
            inflated([large], "gzip", 2**20, length)


def test_a_bomb_of_known_length_is_rejected_before_it_has_unpacked() -> None:
    bomb = gzip.compress(b"\0" * 2**24)
    tracemalloc.start()
    with pytest.raises(TooLarge, match="100 times"):
        inflated([bomb], "gzip", 2**24, len(bomb))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 101 * len(bomb) + 2 * MAX_STEP_OUTPUT_BYTES + 2**18


def test_a_step_takes_a_bounded_part_of_the_body() -> None:
    noise = Random(0).randbytes(10 * MAX_STEP_BYTES)
    for content in (noise, noise + b" " * 4 * MAX_STEP_OUTPUT_BYTES):
        body = zlib.compress(content)
        inflater = Inflater("deflate", 2**24)
        inflater.feed(body)
        steps = 1
        while inflater.step():
            steps += 1
        assert inflater.finish() == content
        assert steps >= max(len(body) // MAX_STEP_BYTES, len(content) // MAX_STEP_OUTPUT_BYTES)


def test_other_tasks_run_while_a_large_body_is_decompressed() -> None:
    content = Random(0).randbytes(20 * MAX_STEP_BYTES)
    body = gzip.compress(content)
    rounds = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def main() -> bytes:
        async def other() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        headers = [(b"content-encoding", b"gzip")]
        try:
            return await read_body(headers, receive, 2 * len(content))
        finally:
            task.cancel()

    assert asyncio.run(main()) == content
    assert rounds >= 20


def test_a_long_list_of_accepted_encodings_is_not_read() -> None:
    assert accepted_encoding([(b"accept-encoding", b"," * 60_000 + b"gzip")]) is None


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
    assert accepted_encoding([] if accepted is None else [(b"accept-encoding", accepted)]) == chosen
