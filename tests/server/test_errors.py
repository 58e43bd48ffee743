from __future__ import annotations

import json

import pytest

from polyrec.models.errors import FeatureError
from polyrec.server import errors


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (errors.Malformed("m"), 400, "invalid"),
        (errors.Unauthorized("m"), 401, "invalid"),
        (errors.Forbidden("m"), 403, "invalid"),
        (errors.RateLimited("m", 3), 429, "invalid"),
        (errors.NotFound("m"), 404, "invalid"),
        (errors.MethodNotAllowed("GET", "POST"), 405, "invalid"),
        (errors.TooLarge("m"), 413, "invalid"),
        (errors.Invalid("m"), 422, "invalid"),
        (FeatureError("price", "value inf"), 422, "invalid"),
        (errors.Overloaded(3), 429, "overloaded"),
        (errors.Defect("m"), 500, "error"),
        (ZeroDivisionError("secret"), 500, "error"),
        (errors.NotReady("m"), 503, "unavailable"),
        (errors.DeadlinePassed(0.01), 504, "expired"),
    ],
)
def test_each_error_has_one_status_and_outcome(error: Exception, status: int, outcome: str) -> None:
    response = errors.error_response(error)
    assert (response.status, response.outcome) == (status, outcome)
    assert list(json.loads(response.body)) == ["error"]
    assert b"secret" not in response.body


def test_headers_that_belong_to_a_status_come_with_it() -> None:
    assert errors.error_response(errors.Overloaded(3)).headers == ((b"retry-after", b"3"),)
    assert errors.error_response(errors.RateLimited("m", 3)).headers == ((b"retry-after", b"3"),)
    assert errors.error_response(errors.Unauthorized("m")).headers == ((b"www-authenticate", b"Bearer"),)
    assert errors.error_response(errors.MethodNotAllowed("GET", "POST")).headers == ((b"allow", b"POST"),)


def test_a_message_is_one_line_of_bounded_length_and_valid_unicode() -> None:
    line = json.loads(errors.error_body("a\nb\tc \ud800 " + "x" * 10_000))["error"]
    assert "\n" not in line
    assert line.startswith("a b c \\ud800 xxx")
    assert len(line) < 600
