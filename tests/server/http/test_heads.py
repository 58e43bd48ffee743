"""Heads that are known, and requests that are turned away unread, against those that are parsed and read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.plan import Plan
from planner.routing.query import Query
from server.dispatcher import clock
from server.engine import Engine
from server.http.body import announced
from server.http.direct import Direct
from server.http.gate import Gate
from server.http.heads import MOST_HEADS, Head, Heads, split
from server.http.inference import Inference
from server.http.oip import InferForm
from server.http.options import RequestOptions, parse_options
from server.http.rank import RankForm
from server.running import Child
from tests.server.http.wire import Connection, Wire

RANK = b'{"candidates": [%s]}'
FIELDS = (
    b"Host: x",
    b"Accept: */*",
    b"content-type: application/json",
    b"X-Latency-Budget-Ms: 60000",
    b"X-Latency-Budget-Ms: 0.00001",
    b"X-Polyrec-Priority: 1",
    b"User-Agent: Content-Length: 7",
)
LENGTHS = (b"Content-Length: ", b"content-length: ", b"CONTENT-LENGTH: ", b"Content-Length:")


def whole(page: bytes, fields: list[bytes], at: int, length: bytes, body: bytes) -> bytes:
    lines = [*fields[:at], length + b"%d" % len(body), *fields[at:]]
    return b"\r\n".join([b"POST %s HTTP/1.1" % page, *lines, b"", body])


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.lists(st.sampled_from(FIELDS), max_size=4, unique=True),
    at=st.integers(0, 4),
    length=st.sampled_from(LENGTHS),
    sizes=st.lists(st.integers(0, 12), min_size=2, max_size=5),
)
def test_a_known_head_is_answered_as_a_parsed_one(
    wires: tuple[Wire, Wire], fields: list[bytes], at: int, length: bytes, sizes: list[int]
) -> None:
    """The same head again and again on one connection, with bodies of other lengths."""
    for size in sizes:
        body = RANK % b", ".join([b"{}"] * size)
        answers = [
            wire.ask([whole(page, fields, at, length, body)])
            for wire, page in zip(wires, (b"/v1/rank", b"/v1/rank?"), strict=True)
        ]
        assert answers[0] == answers[1]


def test_requests_with_a_known_head_may_come_together_or_in_pieces(server: Child) -> None:
    wire = Wire(server)
    body = RANK % b"{}, {}"
    one = whole(b"/v1/rank", [b"Host: x"], 1, LENGTHS[0], body)
    wanted = wire.ask([one])
    assert wanted[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert wire.ask([one]) == wanted
    assert wire.ask([one[:-3], one[-3:]]) == wanted
    assert wire.ask([one[:30], one[30:]]) == wanted
    assert wire.connection is not None
    wire.connection.sendall(one + one + one[:40])
    received = b""
    while received.count(wanted[1]) < 2:
        received += wire._more()
    assert received.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert wire.ask([one[40:]]) == wanted
    wire.close()


@given(
    st.binary(max_size=30),
    st.integers(0, 10**9),
    st.sampled_from([b"\r\nContent-Length: ", b"\r\ncontent-length: "]),
    st.binary(max_size=30),
    st.binary(max_size=30),
)
def test_a_key_leaves_out_nothing_but_the_length(
    before: bytes, length: int, name: bytes, after: bytes, body: bytes
) -> None:
    head = b"POST" + before.replace(b"\r", b"") + name + b"%d\r\nx" % length + after.replace(b"\r", b"")
    data = head + b"\r\n\r\n" + body
    found = split(data)
    if length == 10**9:
        assert found is None
        return
    assert found is not None
    key, begins, told = found
    assert (data[begins:], told) == (body, length)
    at = len(b"POST" + before.replace(b"\r", b"") + name)
    assert key[:at] + b"%d" % length + key[at:] == data[:begins]


@pytest.mark.parametrize("length", [b"-1", b"+1", b" 1", b"1 ", b"0x1", b"", b"1_0", b"1" * 10])
def test_a_length_that_is_not_a_plain_number_is_left_to_the_parser(length: bytes) -> None:
    assert split(b"POST / HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n") is None


def test_heads_are_bounded(engine: Engine) -> None:
    heads = Heads()
    head = Head(Inference(engine, RankForm()), {"headers": []}, None, True, RequestOptions(), True)
    for i in range(2 * MOST_HEADS):
        heads.learn(b"%d" % i, head)
    assert heads.get(b"0") is None
    assert sum(heads.get(b"%d" % i) is head for i in range(2 * MOST_HEADS)) == MOST_HEADS


def counted(engine: Engine) -> list[str]:
    lines = engine.metrics.render().decode().splitlines()
    return [line for line in lines if line.startswith("polyrec_requests_total") and not line.endswith(" 0")]


def read_and_refused(engine: Engine, headers: list[tuple[bytes, bytes]], body: bytes, at_s: float) -> bytes:
    connection = Connection()
    scope: dict[str, Any] = {"type": "http", "path": "/v1/rank", "headers": headers}
    mine = Direct(connection, Inference(engine, RankForm()).call(scope), keep_alive=True)
    mine.at_once(body, None, at_s)
    return connection.sent


@pytest.mark.parametrize("budget_ms", ["60000", "0.1", None])
def test_what_is_turned_away_unread_is_told_and_counted_as_what_is_read(
    plan: Plan, budget_ms: str | None
) -> None:
    async def run() -> None:
        engine = Engine()
        engine.load(plan)
        gate = Gate(engine, "rank")
        headers = [] if budget_ms is None else [(b"x-latency-budget-ms", budget_ms.encode())]
        budget_s = parse_options(headers).budget_s
        body = RANK % b"{}"
        late_s = clock() - 100.0
        soon_s = clock() + 100.0
        router = engine.serving.dispatcher.router
        within_s = budget_s or engine.default_budget_s
        # nothing is refused for want of time before a query with none of it has been
        assert gate.refused(budget_s, 10, soon_s, (), True) is None
        assert router.offer(Query(1, soon_s, soon_s + 600), soon_s) is None  # an idle lane would try anything
        refused = router.offer(Query(1, soon_s, soon_s + within_s), soon_s + within_s - 1e-9, 5)
        assert refused is not None
        for at_s, status in ((late_s, b"HTTP/1.1 504 "), (soon_s, b"HTTP/1.1 429 ")):
            unread = gate.refused(budget_s, len(body), at_s, (), True)
            once = counted(engine)
            assert unread == read_and_refused(engine, headers, body, at_s)
            assert unread is not None
            assert unread.startswith(status)
            assert [line.rpartition(" ")[0] for line in counted(engine)] == [
                line.rpartition(" ")[0] for line in once
            ]
            assert once[-1].endswith(" 1") or once[0].endswith(" 1")
            closing = gate.refused(budget_s, len(body), at_s, (), False)
            assert closing is not None
            assert b"connection: close\r\n\r\n" in closing
        engine.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "header",
    [(b"x-polyrec-priority", b"1"), (b"x-polyrec-quality", b"required"), (b"content-encoding", b"gzip")],
)
def test_who_has_other_options_is_read(engine: Engine, header: tuple[bytes, bytes]) -> None:
    encoding = announced([header], 100)
    assert not Inference(engine, RankForm()).can_turn_away(parse_options([header]), encoding)
    assert Inference(engine, RankForm()).can_turn_away(parse_options([(b"x-latency-budget-ms", b"5")]), None)
    assert not Inference(engine, InferForm()).can_turn_away(RequestOptions(), None)


def test_a_head_that_cannot_be_read_is_told_so_every_time(server: Child) -> None:
    wire = Wire(server)
    asked = whole(b"/v1/rank", [b"X-Latency-Budget-Ms: soon"], 1, LENGTHS[0], RANK % b"{}")
    answers = [wire.ask([asked]) for _ in range(2)]
    wire.close()
    assert answers[0] == answers[1]
    assert answers[0][0].startswith(b"HTTP/1.1 400 ")


def test_nothing_is_judged_before_a_plan_is_loaded(engine: Engine) -> None:
    assert not Gate(Engine(), "rank").judges
    assert Gate(engine, "rank").judges
