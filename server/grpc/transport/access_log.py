"""Lines of the access log for calls, as those of HTTP answers, with gRPC's status in addition."""

from __future__ import annotations

from functools import partial

from grpc import StatusCode

from polyrec.server.dispatch.dispatcher import clock
from polyrec.server.grpc.transport.core import IncomingCall, Metadata
from polyrec.server.http.connection.access_log import AccessLog, AnsweredBy
from polyrec.server.http.connection.head import REQUEST_ID
from polyrec.server.request_ids import request_id

METHOD, STATUS = b"POST", 200
"""Method and status of every call in HTTP/2: an error is in the trailing metadata."""


def log_when_finished(access_log: AccessLog, call: IncomingCall) -> None:
    """Writes a line for a sampled share of the calls, when the call or stream ends."""
    if access_log.samples():
        call.on_finish = partial(_write, access_log, call, clock())


def _write(access_log: AccessLog, call: IncomingCall, begun_s: float, status: StatusCode) -> None:
    given, sent = (_texts(metadata) for metadata in (call.invocation_metadata(), call.trailing))
    name = REQUEST_ID.decode()
    identifier = sent.get(name) or given.get(name)
    access_log.write(
        request_id(None if identifier is None else identifier.encode()),
        METHOD,
        call.method,
        STATUS,
        clock() - begun_s,
        AnsweredBy(sent.get("x-polyrec-path"), sent.get("x-polyrec-reason")),
        status.name,
    )


def _texts(metadata: Metadata) -> dict[str, str]:
    return {name: value for name, value in metadata if isinstance(value, str)}
