from __future__ import annotations

from http import HTTPStatus

import pytest
from grpc import StatusCode

from polyrec.models.errors import FeatureError
from polyrec.server import errors
from polyrec.server.grpc.status import PUSHBACK, status_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Malformed("m"), StatusCode.INVALID_ARGUMENT),
        (errors.Invalid("m"), StatusCode.INVALID_ARGUMENT),
        (FeatureError("price", "is odd"), StatusCode.INVALID_ARGUMENT),
        (errors.TooLarge("m"), StatusCode.INVALID_ARGUMENT),
        (errors.Unauthorized("m"), StatusCode.UNAUTHENTICATED),
        (errors.Forbidden("m"), StatusCode.PERMISSION_DENIED),
        (errors.NotFound("m"), StatusCode.NOT_FOUND),
        (errors.NotReady("m"), StatusCode.UNAVAILABLE),
        (errors.DeadlinePassed(0.1), StatusCode.DEADLINE_EXCEEDED),
        (errors.TooSlow("grpc_message", "m"), StatusCode.DEADLINE_EXCEEDED),
        (errors.HttpViolation(HTTPStatus.NOT_IMPLEMENTED, "l", "m"), StatusCode.INTERNAL),
        (ValueError("secret"), StatusCode.INTERNAL),
    ],
)
def test_every_error_has_one_code(error: Exception, code: StatusCode) -> None:
    assert status_of(error).code is code
    assert "secret" not in status_of(error).message


@pytest.mark.parametrize(
    ("error", "wait_s"), [(errors.Overloaded(3), "3"), (errors.TooBusy("grpc_reading", "m"), "1")]
)
def test_overload_tells_when_to_try_again(error: Exception, wait_s: str) -> None:
    status = status_of(error)
    assert status.code is StatusCode.RESOURCE_EXHAUSTED
    assert dict(status.trailing) == {"retry-after": wait_s, PUSHBACK: f"{wait_s}000"}


def test_a_call_without_a_valid_token_is_not_told_to_be_repeated() -> None:
    assert status_of(errors.Unauthorized("m")).trailing == (("www-authenticate", "Bearer"),)


def test_a_message_is_one_line_of_bounded_length() -> None:
    message = status_of(errors.Malformed("a\nb\ud800" + "x" * 5000)).message
    assert message.startswith("a b\\ud800xxx")
    assert len(message) < 600
