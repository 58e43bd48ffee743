from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import numpy as np
import pytest

from polyrec.server.errors import Overloaded
from polyrec.server.http.connection.reply import COMPRESS_FROM_BYTES, Reply, error_reply, json_reply


def sent(reply: Reply, *headers: tuple[bytes, bytes]) -> tuple[int, dict[bytes, bytes], bytes]:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError("an answer reads nothing")

    asyncio.run(reply({"type": "http", "headers": list(headers)}, receive, send))
    start, body = messages
    return start["status"], dict(start["headers"]), body["body"]


def test_numbers_are_written_as_they_are() -> None:
    _, headers, body = sent(json_reply({"p": np.array([0.1, 0.25], np.float32)}))
    assert headers[b"content-type"] == b"application/json"
    assert int(headers[b"content-length"]) == len(body)
    assert np.float32(json.loads(body)["p"]).tolist() == np.array([0.1, 0.25], np.float32).tolist()


def test_an_error_has_its_status_and_headers() -> None:
    status, headers, body = sent(error_reply(Overloaded(2)))
    assert status == 429
    assert headers[b"retry-after"] == b"2"
    assert json.loads(body) == {"error": "overloaded: the backlog exceeds the latency budget; retry in 2 s"}


@pytest.mark.parametrize("size", [COMPRESS_FROM_BYTES - 1, COMPRESS_FROM_BYTES])
def test_only_large_replies_are_compressed(size: int) -> None:
    _, headers, body = sent(Reply(b"x" * size), (b"accept-encoding", b"gzip"))
    assert (b"content-encoding" in headers) == (size >= COMPRESS_FROM_BYTES)
    assert int(headers[b"content-length"]) == len(body)
    if b"content-encoding" in headers:
        assert gzip.decompress(body) == b"x" * size
        assert headers[b"vary"] == b"accept-encoding"
