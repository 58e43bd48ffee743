from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from polyrec.planner.plan import Plan
from polyrec.planner.routing.admission.arrival import Arrival
from polyrec.server.access.access import Access
from polyrec.server.app.engine import Engine
from polyrec.server.clock import clock
from polyrec.server.errors import DeadlinePassed, Overloaded
from polyrec.server.http.app import create_app
from polyrec.server.http.connection.hot_endpoint import HotEndpoint


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/rank", "/v2/models/dlrm/infer"])
@pytest.mark.parametrize(
    ("headers", "content", "status", "says"),
    [
        ({}, b"{", 400, "truncated"),
        ({}, b"", 400, "the body is empty"),
        ({"content-encoding": "br"}, b"{}", 400, "'br' is not supported"),
        ({"content-encoding": "gzip"}, b"{}", 400, "not gzip"),
        ({"content-length": "99999999"}, b"{}", 413, "99999999 bytes; the limit is 1048576"),
    ],
)
def test_every_hot_endpoint_refuses_a_bad_body(
    client: Any, path: str, headers: dict[str, str], content: bytes, status: int, says: str
) -> None:
    answer = client.post(path, content, headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert says in answer.json()["error"]
    assert "x-polyrec-path" not in answer.headers


@pytest.mark.parametrize("budget", ["soon", "0", "-1", "nan", "inf", "", "1e308", "3600000.1"])
def test_a_budget_that_is_no_time_or_more_than_an_hour_is_rejected(client: Any, budget: str) -> None:
    answer = client.post("/v1/predict", b'{"instances": [{}]}', {"x-latency-budget-ms": budget})
    assert answer.status_code == 400
    assert answer.json()["error"] == (
        f"header X-Latency-Budget-Ms is '{budget}'; "
        "it is a number of milliseconds above 0, 3600000 (an hour) at most"
    )


def test_a_budget_of_an_hour_is_taken(client: Any) -> None:
    answer = client.post("/v1/predict", b'{"instances": [{}]}', {"x-latency-budget-ms": "3.6e6"})
    assert answer.status_code == 200


def test_a_budget_too_small_to_be_met_gives_504(client: Any) -> None:
    answer = client.post("/v1/predict", b'{"instances": [{}]}', {"x-latency-budget-ms": "0.000001"})
    assert answer.status_code == 504
    assert "the latency budget of 1e-06 ms passed" in answer.json()["error"]


def test_the_default_budget_is_the_plans(plan: Plan) -> None:
    engine = Engine()
    engine.load(plan.model_copy(update={"default_budget_ms": 12.5}))
    assert engine.default_budget_s == 0.0125
    engine.close()


def test_an_overfull_queue_gives_429_with_a_time_to_retry(plan: Plan, client: Any) -> None:
    engine = Engine()
    limits = plan.limits.model_copy(update={"max_request_rows": 4, "max_queued_rows": 4})
    engine.load(plan.model_copy(update={"limits": limits}))
    body = b'{"instances": [{}, {}, {}, {}]}'
    crowd = type(client)(client.runner, create_app(engine))
    answers = crowd.together([("POST", "/v1/predict", {"content": body})] * 5)
    statuses = [a.status_code for a in answers]
    assert set(statuses) == {200, 429}
    refused = answers[statuses.index(429)]
    assert int(refused.headers["retry-after"]) >= 1
    assert crowd.post("/v1/predict", body).status_code == 200
    assert 'outcome="overloaded",path="none"}' in crowd.send("GET", "/metrics").text
    engine.close()


def overload(hot: HotEndpoint, scope: dict[str, Any], body: bytes) -> None:
    """Submits requests until many are rejected.

    Nothing is executed before the event loop has its turn, so the queue grows until it is full; a machine
    that stops this process for a moment rejects some before that.
    """
    rejected = 0
    while rejected < 100:
        call = hot.call(scope)
        call.admit()
        try:
            call.submit(body)
        except (DeadlinePassed, Overloaded):
            rejected += 1


def test_past_capacity_a_request_is_rejected_unparsed_unless_its_headers_ask_for_more(plan: Plan) -> None:
    engine = Engine()
    engine.load(plan)
    hot = create_app(engine).hot[b"/v1/predict"]
    rows = 128  # a whole number of such requests fills the queue
    body = b'{"instances": [%s]}' % b",".join([b"{}"] * rows)
    budget = (b"x-latency-budget-ms", b"1000")
    size = len(body)

    def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
        return {"type": "http", "path": "/v1/predict", "headers": list(headers), "client": None}

    def status(size: int | None, body: bytes, *headers: tuple[bytes, bytes]) -> int | None:
        rejected = hot.reject_early(list(headers), size, lambda: scope(*headers), None, body)
        return None if rejected is None else rejected.status

    async def scenario() -> None:
        assert status(size, body, budget) is None
        overload(hot, scope(budget), body)
        assert status(size, body, budget) == 429
        assert status(size, body[:-1], budget) is None  # of which a part is still to come
        assert status(None, body, budget) is None
        many = b'{"instances": [%s]}' % b",".join([b"{}"] * (plan.limits.max_request_rows + 1))
        # a 413 or 400, of which a retry is no use
        for invalid in (b" " * (engine.serving.max_body_bytes + 1), many, b'{"instances": []}', body[:-2]):
            assert status(len(invalid), invalid, budget) is None
        for header in (
            (b"x-polyrec-priority", b"1"),
            (b"x-polyrec-quality", b"required"),
            (b"content-encoding", b"gzip"),
            (b"x-latency-budget-ms", b"soon"),
        ):
            assert status(size, body, budget, header) is None, header
        engine.close()  # answers what waits, in the event loop

    asyncio.run(scenario())


def test_past_capacity_a_client_that_is_not_authenticated_gets_no_early_rejection(
    plan: Plan, tmp_path: Path
) -> None:
    """It would get 429 instead of 401, and its rows would be recorded as lost."""
    file = tmp_path / "tokens.json"
    file.write_bytes(orjson.dumps({"clients": [{"name": "shop", "token": "shop-token-0123456789"}]}))
    engine = Engine()
    engine.load(plan)
    engine.access = Access(engine.metrics, file)
    hot = create_app(engine).hot[b"/v1/predict"]
    body = b'{"instances": [%s]}' % b",".join([b"{}"] * 128)

    def scope(token: bytes) -> dict[str, Any]:
        headers = [(b"x-latency-budget-ms", b"1000"), (b"authorization", b"Bearer " + token)]
        return {"type": "http", "path": "/v1/predict", "headers": headers, "client": ("10.0.0.1", 4711)}

    def status(token: bytes) -> int | None:
        rejected = hot.reject_early(scope(token)["headers"], len(body), lambda: scope(token), None, body)
        return None if rejected is None else rejected.status

    async def scenario() -> None:
        overload(hot, scope(b"shop-token-0123456789"), body)
        assert status(b"shop-token-0123456789") == 429
        assert status(b"a wrong token") is None
        engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("waiting", "utilization", "disturbed"), [(0.5, 0.5, True), (0.0, 0.5, False), (0.5, 1.2, False)]
)
def test_a_budget_begins_at_the_likely_arrival_if_other_programs_and_not_requests_take_the_time(
    plan: Plan, waiting: float, utilization: float, disturbed: bool
) -> None:
    engine = Engine()
    engine.max_budget_s = 2000.0
    engine.load(plan)
    scope = {"type": "http", "headers": [(b"x-latency-budget-ms", b"1000000")], "client": None}
    state = engine.serving.dispatcher.router.state

    async def scenario() -> None:
        assert state.sole_inline_lane is not None
        state.sole_inline_lane.correction.waiting, state.utilization = waiting, utilization
        call = create_app(engine).hot[b"/v1/predict"].call(scope)
        call.admit()
        now_s = clock()
        call.submit(b'{"instances": [{}]}', Arrival(now_s - 300.0, now_s - 100.0, 1.0))
        waits_from_s = state.queue.pieces[0].query.arrival_s
        assert waits_from_s == now_s - (100.0 if disturbed else 300.0)
        engine.close()

    asyncio.run(scenario())


def test_many_rows_in_few_bytes_do_not_have_others_rejected_for_their_bytes(plan: Plan) -> None:
    """Past capacity, which one client causes for its own requests alone."""
    engine = Engine()
    engine.load(plan)
    hot = create_app(engine).hot[b"/v1/predict"]
    hostile = b'{"instances": [%s]}' % b",".join([b"{}"] * 1024)
    small = b'{"instances": [{}%s]}' % (b" " * 2 * len(hostile))
    budget = (b"x-latency-budget-ms", b"1000")
    scope = {"type": "http", "path": "/v1/predict", "headers": [budget], "client": None}

    async def scenario() -> None:
        limit = engine.serving.plan.limits.max_queued_rows
        for _ in range(limit // 1024 - 1):
            query = hot.call(scope)
            query.admit()
            query.submit(hostile)
        last = hot.call(scope)
        last.admit()
        last.submit(b'{"instances": [%s]}' % b",".join([b"{}"] * 512))
        beyond = hot.call(scope)
        beyond.admit()
        with pytest.raises(Overloaded):
            beyond.submit(hostile)  # 512 rows are left
        assert hot.reject_early([budget], len(hostile), lambda: scope, None, hostile) is not None
        assert hot.reject_early([budget], len(small), lambda: scope, None, small) is None
        engine.close()

    asyncio.run(scenario())


def test_past_capacity_a_body_that_may_have_options_is_parsed(
    plan: Plan, tensors: Callable[[Any], dict[str, Any]], request_: Any
) -> None:
    engine = Engine()
    engine.load(plan)
    hot = create_app(engine).hot[b"/v2/models/dlrm/infer"]
    inputs = [
        {"name": name, "shape": array.shape, "data": array.ravel()}
        | {"datatype": "FP32" if array.dtype.kind == "f" else "INT64"}
        for name, array in tensors(request_).items()
    ]

    def body(**more: object) -> bytes:
        return orjson.dumps({**more, "inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY)

    headers = [(b"x-latency-budget-ms", b"1000")]
    scope = {"type": "http", "path": "/v2/models/dlrm/infer", "headers": headers, "client": None}

    def status(body: bytes, received: int | None = None) -> int | None:
        rejected = hot.reject_early(headers, len(body), lambda: scope, None, body[:received])
        return None if rejected is None else rejected.status

    async def scenario() -> None:
        plain = body()
        assert status(plain) is None
        overload(hot, scope, plain)
        assert status(plain) == 429
        assert status(plain, len(plain) - 1) is None
        assert status(body(parameters={"priority": 1})) is None
        assert (
            status(body().replace(b'{"inputs"', b'{"param\\u0065ters":{"timeout":9000000},"inputs"')) is None
        )
        engine.close()

    asyncio.run(scenario())
