from __future__ import annotations

from collections.abc import Callable

import pytest

from polyrec.client.answers import read_prediction
from polyrec.client.call import Call, Options
from polyrec.client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotAllowed,
    Overloaded,
    PredictionError,
    Unavailable,
)

ANSWER = b'{"predictions": [0.5], "path": "table@cpu", "quality": 0.1, "degraded": false, "reason": null}'


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def call(clock: Clock) -> Callable[..., Call]:
    return lambda **options: Call(Options(**options), clock, jitter=lambda: 0.5)


def test_each_attempt_tells_the_server_what_is_left_of_the_budget(
    call: Callable[..., Call], clock: Clock
) -> None:
    asked = call(budget_ms=50, priority=1, quality="required")
    headers, left_s = asked.attempt()
    assert headers == {
        "X-Latency-Budget-Ms": "50.000",
        "X-Polyrec-Priority": "1",
        "X-Polyrec-Quality": "required",
    }
    assert left_s == pytest.approx(0.05)
    clock.now_s += 0.02
    headers, left_s = asked.attempt()
    assert headers["X-Latency-Budget-Ms"] == "30.000"
    assert left_s == pytest.approx(0.03)
    assert asked.attempts == 2


def test_without_a_budget_the_servers_default_holds(call: Callable[..., Call]) -> None:
    assert call(timeout_s=3).attempt() == ({}, pytest.approx(3))


def test_no_attempt_is_begun_after_the_deadline(call: Callable[..., Call], clock: Clock) -> None:
    asked = call(budget_ms=10)
    asked.attempt()
    clock.now_s += 0.01
    with pytest.raises(DeadlineExceeded, match=r"no answer within 10 ms \(1 attempts\)"):
        asked.attempt()


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honored(call: Callable[..., Call], status: int) -> None:
    asked = call(timeout_s=10)
    asked.attempt()
    assert asked.answered(status, {"retry-after": "2"}, b'{"error": "busy"}') == 2


@pytest.mark.parametrize("status", [401, 422, 429, 503, 504])
def test_an_error_has_the_id_that_the_server_logged(call: Callable[..., Call], status: int) -> None:
    asked = call(retries=0)
    asked.attempt()
    with pytest.raises(PredictionError) as raised:
        asked.answered(status, {"x-request-id": "r1"}, b'{"error": "no"}')
    assert raised.value.request_id == "r1"


def test_a_wait_that_would_pass_the_deadline_is_not_begun(call: Callable[..., Call]) -> None:
    asked = call(budget_ms=900)
    asked.attempt()
    with pytest.raises(Overloaded, match="busy") as raised:
        asked.answered(429, {"retry-after": "1"}, b'{"error": "busy"}')
    assert (raised.value.status, raised.value.retry_after_s) == (429, 1)


def test_retries_end(call: Callable[..., Call]) -> None:
    asked = call(retries=2)
    for _ in range(2):
        asked.attempt()
        asked.answered(503, {"retry-after": "0"}, b"{}")
    asked.attempt()
    with pytest.raises(Unavailable):
        asked.answered(503, {"retry-after": "0"}, b"{}")


def test_broken_connections_are_tried_again_after_waits_that_double(call: Callable[..., Call]) -> None:
    asked = call(retries=3)
    waits = []
    for _ in range(3):
        asked.attempt()
        waits.append(asked.failed("refused"))
    assert waits == pytest.approx([0.05, 0.1, 0.2])
    asked.attempt()
    with pytest.raises(Unavailable, match="refused"):
        asked.failed("refused")


def test_a_retry_after_that_is_a_date_or_nonsense_means_the_backoff(call: Callable[..., Call]) -> None:
    for header in ("Wed, 21 Oct 2026 07:28:00 GMT", "-1", "nan", "inf", ""):
        asked = call()
        asked.attempt()
        assert asked.answered(503, {"retry-after": header}, b"") == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidRequest),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, InvalidRequest),
        (413, InvalidRequest),
        (422, InvalidRequest),
        (500, Unavailable),
        (504, DeadlineExceeded),
    ],
)
def test_other_statuses_are_final(
    call: Callable[..., Call], status: int, error: type[PredictionError]
) -> None:
    asked = call()
    asked.attempt()
    with pytest.raises(PredictionError, match="feature 'price'") as raised:
        asked.answered(status, {}, b'{"error": "feature \'price\': wrong"}')
    assert type(raised.value) is error
    assert raised.value.status == status


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"hello": 1}', b'{"predictions": "x"}'])
def test_an_answer_of_something_else_is_no_prediction(call: Callable[..., Call], body: bytes) -> None:
    asked = call()
    asked.attempt()
    with pytest.raises(Unavailable, match="Polyrec server"):
        asked.read(read_prediction, asked.answered(200, {}, body), {})  # type: ignore[arg-type]


def test_an_answer_is_typed(call: Callable[..., Call]) -> None:
    asked = call()
    asked.attempt()
    found = asked.answered(200, {}, ANSWER)
    assert isinstance(found, dict)
    answer = asked.read(read_prediction, found, {"x-request-id": "r1"})
    assert answer.probabilities.tolist() == [0.5]
    assert (answer.path, answer.quality, answer.degraded, answer.reason) == ("table@cpu", 0.1, False, None)
    assert (answer.request_id, answer.attempts, len(answer)) == ("r1", 1, 1)


@pytest.mark.parametrize("options", [{"budget_ms": 0}, {"budget_ms": 4e6}, {"timeout_s": 0}, {"retries": -1}])
def test_an_option_out_of_range_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        Options(**options)  # type: ignore[arg-type]
