"""Converts request errors to gRPC statuses, with one code for each HTTP status."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from grpc import StatusCode

from polyrec.server.errors import error_headers, one_line, request_error

CODES = {
    HTTPStatus.BAD_REQUEST: StatusCode.INVALID_ARGUMENT,
    HTTPStatus.UNAUTHORIZED: StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: StatusCode.NOT_FOUND,
    HTTPStatus.CONFLICT: StatusCode.ABORTED,
    HTTPStatus.REQUEST_TIMEOUT: StatusCode.DEADLINE_EXCEEDED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: StatusCode.INVALID_ARGUMENT,
    HTTPStatus.MISDIRECTED_REQUEST: StatusCode.FAILED_PRECONDITION,
    HTTPStatus.UNPROCESSABLE_ENTITY: StatusCode.INVALID_ARGUMENT,
    HTTPStatus.TOO_MANY_REQUESTS: StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: StatusCode.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC code by HTTP status; others are INTERNAL. 413 is not RESOURCE_EXHAUSTED, as clients may retry that."""
PUSHBACK = "grpc-retry-pushback-ms"
"""Trailing metadata that delays gRPC's automatic retries (gRFC A6)."""


class GrpcStatus(NamedTuple):
    """The status of a failed call. trailing: metadata with lower-case names."""

    code: StatusCode
    message: str
    trailing: tuple[tuple[str, str], ...]


def status_of(error: Exception) -> GrpcStatus:
    """Converts any exception to code, message and trailing metadata."""
    known = request_error(error)
    headers = error_headers(known)
    trailing = tuple((name.decode(), value.decode()) for name, value in headers)
    trailing += tuple((PUSHBACK, f"{value.decode()}000") for name, value in headers if name == b"retry-after")
    return GrpcStatus(CODES.get(known.status, StatusCode.INTERNAL), one_line(str(known)), trailing)
