"""Records that the server sends to the exporter: one per sampled request, as length-prefixed msgpack.

Times are seconds of the server's monotonic clock; adding `offset_ns` gives Unix time. Trace ids are 16 bytes,
span ids unsigned 64-bit numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from polyrec.server.record_pipe import framed, unframe


class Execution(msgspec.Struct, array_like=True, frozen=True):
    """One executed batch, the root span of its own trace.

    queries: number of queries in the batch, sampled or not. embed_at_s: time at which the embed stage began.
    """

    trace_id: bytes
    span_id: int
    lane: str
    path: str
    rows: int
    queries: int
    started_s: float
    encode_s: float
    embed_at_s: float
    embed_s: float
    dense_s: float
    ended_s: float


class SharedBatch(msgspec.Struct, array_like=True, frozen=True):
    """A batch, and (trace id, span id) of the sampled requests in it."""

    execution: Execution
    requests: list[tuple[bytes, int]]


class RequestRecord(msgspec.Struct, array_like=True, frozen=True):
    """One sampled request. Times of phases that it did not reach are 0. status is 0 if the client left.

    begun_s: time at which parsing began, after the body was complete. parent_id: id of the client's span, 0
    if none. request_id: id in the answer's header, empty if another server called the application.
    executions: executions of its rows. batches: batches that this record reports; each is reported by only
    one record.
    """

    trace_id: bytes
    span_id: int
    parent_id: int
    tracestate: str
    offset_ns: int
    request_id: str
    path: str
    route: str
    scheme: str
    http_version: str
    address: str
    port: int
    status: int
    outcome: str
    rows: int
    budget_s: float
    answered_by: str | None
    reason: str | None
    arrival_s: float
    begun_s: float
    parsed_s: float
    answered_s: float
    written_s: float
    ended_s: float
    executions: list[Execution]
    batches: list[SharedBatch]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RequestRecord)


def pack_record(request: RequestRecord) -> bytes:
    """Encodes a record, prefixed with its length."""
    return framed(_encoder.encode(request))


def unpack_records(buffer: bytearray) -> Iterator[RequestRecord]:
    """Yields the complete records of a buffer and removes them from it."""
    return map(_decoder.decode, unframe(buffer))
