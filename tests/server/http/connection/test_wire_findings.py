"""Findings of an attack on the HTTP connection, each by bare sockets against a real server."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrec.server.child import ServerProcess
from tests.forking import start
from tests.server.http.connection.talk import Talk, get, post
from tests.server.http.streams.asks import H2C, WEBSOCKET, Headers
from tests.server.http.streams.malformed import KINDS

TOKEN = "a token for the findings"
MAX_BODY_BYTES = 20_000
ONE = b'{"instances": [{}]}'
RANK = b'{"candidates": [{}, {}], "top_k": 1}'
ADMIN = post("/v1/admin/routing", b"{}", b"Authorization: Bearer " + TOKEN.encode())
SMUGGLED = get("/v1/paths")
PAGES = (
    "/",
    "/livez",
    "/readyz",
    "/metrics",
    "/v1/plan",
    "/v1/paths",
    "/v1/route?rows=5",
    "/v2",
    "/v2/health/live",
    "/v2/models/dlrm",
    "/v2/models/dlrm/config",
    "/v1/nowhere",
)

REFUSED = {f"{name} {i}": entry for name, table in KINDS for i, entry in enumerate(table)}


@pytest.fixture(scope="module")
def url(bundle_dir: Path) -> Iterator[str]:
    """A server with an administrator and small bodies."""
    settings = {
        "bundle": bundle_dir,
        "drain_grace_s": 0,
        "default_budget_ms": 60_000,
        "admin_token": TOKEN,
        "max_body_bytes": MAX_BODY_BYTES,
        "log_level": "error",
    }
    child: ServerProcess
    with start(settings) as child:
        yield child.url


def lines(headers: Headers) -> list[bytes]:
    return [name + b": " + value for name, value in headers]


def read_so_far(url: str) -> None:
    """Returns once the server has read what was sent to it before."""
    with Talk(url) as other:
        assert other.ask(get("/livez"), "GET").status == 200


# Critical 1: one request's bytes change the meaning of another's


def test_an_operators_call_means_the_same_after_a_prediction_on_its_connection(url: str) -> None:
    with Talk(url) as operator:
        assert operator.ask(ADMIN).status == 200
        assert operator.ask(post("/v1/predict", ONE)).status == 200
        assert operator.ask(ADMIN).status == 200
    with Talk(url) as another:
        answer = another.ask(ADMIN)
    assert answer.status == 200
    assert answer.json["policy"] == "priced"


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("budget", post("/v1/predict", ONE, b"X-Latency-Budget-Ms: 0.00001")),
        ("rank", post("/v1/rank", RANK)),
        ("gzip", post("/v1/predict", gzip.compress(ONE), b"Content-Encoding: gzip")),
        ("page", get("/v1/nowhere")),
    ],
)
def test_a_head_that_was_rejected_keeps_its_meaning_for_others(url: str, name: str, own: bytes) -> None:
    client = b"User-Agent: victim of " + name.encode()
    with Talk(url) as attacker:
        attacker.send(post("/v1/predict", b" " * (MAX_BODY_BYTES + 1), client) + own)
        assert attacker.answer().status == 413
    for _ in range(2):
        with Talk(url) as victim:
            answer = victim.ask(post("/v1/predict", ONE, client))
        assert answer.status == 200
        assert list(answer.json) == ["predictions", *list(answer.json)[1:]]
        assert "content-encoding" not in answer.headers


# High 5: Upgrade


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize("together", [True, False])
def test_an_upgrade_is_ignored_and_the_body_read(url: str, upgrade: Headers, together: bool) -> None:
    raw = post("/v1/predict", ONE, *lines(upgrade))
    with Talk(url) as client:
        for _ in range(2):
            client.send(*([raw] if together else [raw[: -len(ONE)], raw[-len(ONE) :]]))
            answer = client.answer()
            assert answer.status == 200, answer.body
            assert len(answer.json["predictions"]) == 1


def test_a_body_behind_an_upgrade_is_no_request(url: str) -> None:
    with Talk(url) as client:
        first = client.ask(post("/v1/predict", SMUGGLED, *lines(WEBSOCKET)))
        assert first.status == 400
        assert "JSON" in first.json["error"]
        second = client.ask(get("/v2/health/live"), "GET")
        assert second.json == {"live": True}


# High 6: HEAD


@pytest.mark.parametrize("page", PAGES)
def test_head_is_answered_as_get_without_a_body(url: str, page: str) -> None:
    with Talk(url) as client:
        full = client.ask(get(page), "GET")
        head = client.ask(get(page, method="HEAD"), "HEAD")
        assert head.status == full.status
        assert head.headers["content-type"] == full.headers["content-type"]
        assert client.ask(get("/v2/health/live"), "GET").json == {"live": True}


def test_head_of_a_page_that_takes_only_posts_is_405(url: str) -> None:
    with Talk(url) as client:
        assert client.ask(get("/v1/predict", method="HEAD"), "HEAD").status == 405
        assert client.ask(post("/v1/predict", ONE)).status == 200


# High 7: connections that never close


@pytest.mark.long
def test_a_body_that_stops_coming_does_not_hold_its_connection(url: str) -> None:
    """With the limits of a server as it is started; short ones: test_connection.py."""
    with Talk(url) as rejected, Talk(url) as unread, Talk(url) as unfinished:
        assert rejected.ask(post("/v1/predict", b" " * 50_000)[:-49_000]).status == 413
        assert unread.ask(get("/livez", b"Content-Length: 100"), "GET").status == 200
        unfinished.send(post("/v1/predict", ONE)[:-3])
        for client in (rejected, unread):
            client.send(b" ")
            assert client.ended(within_s=60.0)
        assert unfinished.answer().status == 408
        assert unfinished.ended()


def test_a_rejected_body_can_be_sent_whole_and_the_answer_read(url: str) -> None:
    with Talk(url) as client:
        client.send(post("/v1/predict", b" " * 5_000_000))
        answer = client.answer()
        assert answer.status == 413
        assert "5000000" in answer.json["error"]


# Medium: heads and pipelining


def test_a_head_means_the_same_however_its_bytes_are_cut(url: str) -> None:
    """A known request in the middle of another's head is a header of that."""
    known = post("/v1/predict", ONE)
    swallowing = b"GET /v1/nowhere HTTP/1.1\r\nX-Swallow: "
    with Talk(url) as client:
        assert [client.ask(known).status for _ in range(3)] == [200, 200, 200]
    for pieces in (
        [known + swallowing + known],
        [known, swallowing, known],
        [known, swallowing + known],
        [known + swallowing, known],
    ):
        with Talk(url) as client:
            for piece in pieces:
                client.send(piece)
                read_so_far(url)
            statuses = [client.answer().status, client.answer().status]
            assert statuses == [200, 404], pieces
            assert client.ask(known).status == 200


@pytest.mark.parametrize(
    "first", [post("/v1/predict", ONE), get("/v2/health/live"), ADMIN], ids=["predict", "page", "admin"]
)
@pytest.mark.parametrize("second", [post("/v1/predict", ONE), ADMIN], ids=["predict", "admin"])
def test_a_pipelined_body_may_follow_the_answer_before_it(url: str, first: bytes, second: bytes) -> None:
    head, _, body = second.partition(b"\r\n\r\n")
    with Talk(url) as client:
        assert client.ask(first + head + b"\r\n\r\n").status == 200
        answer = client.ask(body)
        assert answer.status == 200, answer.body


def test_pipelined_requests_are_answered_in_order_up_to_a_malformed_one(url: str) -> None:
    with Talk(url) as client:
        client.send(post("/v1/predict", ONE) * 3 + get("/livez") + post("/v1/rank", b"{}") + b"\0\r\n\r\n")
        assert [client.answer().status for _ in range(6)] == [200, 200, 200, 200, 422, 400]
        assert client.ended()


def test_a_trailer_is_no_header(url: str) -> None:
    for trailer in (b"X-Latency-Budget-Ms: 0.00001", b"Content-Encoding: gzip", b"Connection: close"):
        raw = post("/v1/predict", b"", b"Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
        chunks = b"13\r\n" + ONE + b"\r\n0\r\n" + trailer + b"\r\n\r\n"
        with Talk(url) as client:
            for _ in range(2):
                assert client.ask(raw + chunks).status == 200


def test_expect_100_continue_is_answered(url: str) -> None:
    raw = post("/v1/predict", ONE, b"Expect: 100-continue")
    with Talk(url) as client:
        for _ in range(2):
            assert client.ask(raw[: -len(ONE)]).status == 100
            assert client.ask(ONE).status == 200
        assert client.ask(post("/v1/predict", ONE)).status == 200


# Low: Host, versions, Transfer-Encoding, sizes of heads; and whatever else is no HTTP/1.1


@pytest.mark.parametrize(("raw", "statuses"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_requests_are_rejected_and_the_connection_closed(
    url: str, raw: bytes, statuses: set[int]
) -> None:
    with Talk(url) as client:
        answer = client.ask(raw + SMUGGLED)
        assert answer.status in statuses
        assert answer.json["error"]
        assert answer.headers["connection"] == "close"
        assert client.ended()


def test_http_1_0_needs_no_host_and_is_closed(url: str) -> None:
    with Talk(url) as client:
        assert client.ask(b"GET /v2/health/live HTTP/1.0\r\n\r\n", "GET").json == {"live": True}
        assert client.ended()
