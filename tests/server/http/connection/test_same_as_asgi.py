"""Answers without ASGI against those of the application, byte for byte, for whatever a client may send.

A path with an empty query is the same page, and answered by the application.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.http.connection.wire import Wire

PAGES = ("/v1/predict", "/v1/rank", "/v2/models/dlrm/infer")
INFER = b"an inference request that is valid"
BODIES = (
    b'{"instances": [{}]}',
    b'{"instances": [%s]}' % b", ".join([b"{}"] * 200),
    b'{"candidates": [{}, {}, {}], "top_k": 2}',
    INFER,
    b'{"instances": [{"nobody": 1}]}',
    b'{"instances"',
    b"",
)
WISHES = (
    b"X-Latency-Budget-Ms: 60000",
    b"X-Latency-Budget-Ms: 0.00001",
    b"x-latency-budget-ms: soon",
    b"X-Polyrec-Priority: 1",
    b"X-Polyrec-Priority: -1",
    b"X-Polyrec-Quality: required",
    b"X-Polyrec-Quality: best",
    b"Accept-Encoding: gzip",
    b"Accept-Encoding: deflate;q=0, gzip;q=0",
    b"Inference-Header-Content-Length: 5",
    b"Inference-Header-Content-Length: x",
    b"Connection: close",
    b"Cookie: a=b",
)
ENCODINGS = {
    b"": lambda body: body,
    b"gzip": gzip.compress,
    b"deflate": zlib.compress,
    b"br": lambda body: body,
    b"GZIP ": lambda body: body,
}


@pytest.fixture(scope="module")
def infer(requests: list[Any], tensors: Callable[[Any], dict[str, Any]]) -> bytes:
    """A valid inference request."""
    kinds = {"f": "FP32", "i": "INT64"}
    inputs = [
        {"name": n, "datatype": kinds[a.dtype.kind], "shape": list(a.shape), "data": a.ravel().tolist()}
        for n, a in tensors(requests[0]).items()
    ]
    return json.dumps({"inputs": inputs}).encode()


def request(page: str, headers: list[bytes], body: bytes, chunk: int) -> bytes:
    """chunk: bytes of a chunk; 0: not chunked."""
    if chunk:
        sent = b"".join(
            b"%x\r\n%s\r\n" % (len(piece), piece)
            for piece in (body[i : i + chunk] for i in range(0, len(body), chunk))
        )
        sent += b"0\r\n\r\n"
        length = b"Transfer-Encoding: chunked"
    else:
        sent, length = body, b"Content-Length: %d" % len(body)
    return b"\r\n".join([b"POST %s HTTP/1.1" % page.encode(), b"Host: x", length, *headers, b"", sent])


def cut(whole: bytes, places: list[float]) -> list[bytes]:
    at = sorted({round(p * len(whole)) for p in places} | {0, len(whole)})
    return [whole[a:b] for a, b in pairwise(at)]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    page=st.sampled_from(PAGES),
    body=st.sampled_from(BODIES) | st.binary(max_size=40),
    wishes=st.lists(st.sampled_from(WISHES), max_size=4),
    encoding=st.sampled_from(sorted(ENCODINGS)) | st.just(b""),
    chunk=st.sampled_from([0, 0, 1, 7, 4096]),
    places=st.lists(st.floats(0, 1), max_size=3),
)
def test_a_hot_request_is_answered_as_by_the_application(
    wires: tuple[Wire, Wire],
    infer: bytes,
    page: str,
    body: bytes,
    wishes: list[bytes],
    encoding: bytes,
    chunk: int,
    places: list[float],
) -> None:
    body = infer if body == INFER else body
    if chunk == 1:
        body = body[:50]
    headers = [*wishes, *([b"Content-Encoding: " + encoding] if encoding else [])]
    sent = ENCODINGS[encoding](body)
    hot, asgi = (
        # twice: nothing of the first may remain on the connection
        [wire.ask(cut(request(p, headers, sent, chunk), at)) for at in (places, [])]
        for wire, p in zip(wires, (page, page + "?"), strict=True)
    )
    assert hot == asgi


def test_a_valid_inference_request_is_answered(wires: tuple[Wire, Wire], infer: bytes) -> None:
    for wire, page in zip(wires, (PAGES[2], PAGES[2] + "?"), strict=True):
        head, body, _ = wire.ask([request(page, [], infer, 0)])
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert json.loads(body)["outputs"][0]["name"] == "probability"
