"""The direct answer against the ASGI one, byte for byte, for whatever a client may send.

A path with an empty query is the same page, and not answered directly.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.plan import Plan
from server.dispatcher import clock
from server.engine import Engine
from server.http import direct
from server.http.call import Form
from server.http.direct import Direct
from server.http.inference import Inference
from server.http.oip import InferForm
from server.http.predict import PredictForm
from server.http.rank import RankForm
from tests.server.http.wire import Connection, Wire

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
def test_a_direct_answer_is_the_asgi_answer(
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
    direct_, asgi = (
        # the second time its head is known, if the client keeps the connection
        [wire.ask(cut(request(p, headers, sent, chunk), at)) for at in (places, [])]
        for wire, p in zip(wires, (page, page + "?"), strict=True)
    )
    assert direct_ == asgi


def test_a_valid_inference_request_is_answered(wires: tuple[Wire, Wire], infer: bytes) -> None:
    for wire, page in zip(wires, (PAGES[2], PAGES[2] + "?"), strict=True):
        head, body, _ = wire.ask([request(page, [], infer, 0)])
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert json.loads(body)["outputs"][0]["name"] == "probability"


def begun(
    engine: Engine, headers: list[tuple[bytes, bytes]], form: Form | None = None
) -> tuple[Connection, Direct]:
    connection = Connection()
    scope: dict[str, Any] = {"type": "http", "path": "/v1/predict", "headers": headers}
    mine = Direct(connection, Inference(engine, form or PredictForm()).call(scope), keep_alive=True)
    mine.begin()
    return connection, mine


def asked(engine: Engine) -> tuple[Connection, Direct]:
    """A whole request, which waits for its turn."""
    connection, mine = begun(engine, [])
    mine.body(b'{"instances": [{}]}')
    mine.complete(clock())
    return connection, mine


def test_a_body_that_does_not_come_is_not_waited_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "ARRIVAL_TIMEOUT_S", 0.01)

    async def run() -> Connection:
        connection, mine = begun(engine, [(b"content-length", b"100")])
        mine.body(b'{"inst')
        mine.wait(asyncio.get_running_loop())
        while not connection.ends:
            await asyncio.sleep(0.001)
        return connection

    connection = asyncio.run(run())
    assert connection.sent.startswith(b"HTTP/1.1 400 ")
    assert b"did not arrive within 0.01 s (6 bytes came)" in connection.sent


def test_a_plan_loaded_while_the_body_arrives_answers_it(plan: Plan) -> None:
    """The one before is closed once nobody waits for it, and a body that is still to come does not count."""

    async def run() -> Connection:
        engine = Engine()
        engine.load(plan)
        connection, mine = begun(engine, [(b"content-length", b"19")])
        mine.body(b'{"instances"')
        old = engine.serving
        engine.load(plan)
        while not old.dispatcher._closed:
            await asyncio.sleep(0.001)
        mine.body(b": [{}]}")
        mine.complete(clock())
        while not connection.ends:
            await asyncio.sleep(0.001)
        engine.close()
        return connection

    assert asyncio.run(run()).sent.startswith(b"HTTP/1.1 200 ")


def test_what_waits_when_the_server_ends_is_told_so(plan: Plan) -> None:
    async def run() -> tuple[Connection, Direct]:
        engine = Engine()
        engine.load(plan)
        connection, mine = asked(engine)
        engine.close()
        while not connection.ends:
            await asyncio.sleep(0.001)
        return connection, mine

    connection, mine = asyncio.run(run())
    assert connection.sent.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close\r\n" in connection.sent
    assert not mine.keep_alive


def test_a_client_that_has_gone_is_written_nothing(plan: Plan) -> None:
    async def run() -> tuple[Connection, Engine]:
        engine = Engine()
        engine.load(plan)
        connection, mine = asked(engine)
        mine.disconnected = True
        mine.gone()
        while engine.serving.dispatcher.waiting:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        return connection, engine

    connection, engine = asyncio.run(run())
    assert connection.sent == b""
    assert connection.ends == 0
    lines = engine.metrics.render().decode().splitlines()
    assert 'polyrec_requests_total{endpoint="predict",outcome="cancelled"} 1' in lines
    engine.close()


@pytest.mark.parametrize(
    ("form", "body"),
    [(PredictForm(), b'{"instances": [{}]}'), (RankForm(), b'{"candidates": [{}]}'), (InferForm(), INFER)],
    ids=["predict", "rank", "infer"],
)
def test_what_is_answered_leaves_nothing_for_the_garbage_collector(
    plan: Plan, infer: bytes, form: Form, body: bytes
) -> None:
    """Its second generation took 5 ms of the loop, ten times a second, for cycles through the listener."""

    asks = (b"60000", 200), (b"0.001", 504), (b"never", 400)

    async def run() -> list[int]:
        engine = Engine()
        engine.load(plan)
        left = []
        for budget_ms, status in asks * 2:
            for _ in range(20):
                connection, mine = begun(engine, [(b"x-latency-budget-ms", budget_ms)], form)
                mine.body(infer if body == INFER else body)
                mine.complete(clock())
                while not connection.ends:
                    await asyncio.sleep(0)
                assert connection.sent.startswith(b"HTTP/1.1 %d " % status)
            del connection, mine
            left.append(gc.collect())
        engine.close()
        return left[len(asks) :]  # the first time much is made that stays

    gc.disable()
    try:
        assert asyncio.run(run()) == [0, 0, 0]
    finally:
        gc.enable()
