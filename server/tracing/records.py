"""What the server tells the exporter: one record a sampled request, as msgpack, each behind its length.

Moments are seconds of the server's monotonic clock; `offset_ns` makes Unix time of them. Trace ids are 16
bytes, span ids unsigned 64-bit numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

LENGTH_BYTES = 4


class Execution(msgspec.Struct, array_like=True, frozen=True):
    """One executed batch, which is a span of its own trace: its ids, its lane, and when its stages were.

    queries: that shared the batch, sampled or not. embed_at_s: when the first stage began.
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
    """A batch and the sampled requests in it, (trace id, span id) each."""

    execution: Execution
    requests: list[tuple[bytes, int]]


class RequestRecord(msgspec.Struct, array_like=True, frozen=True):
    """One sampled request. A moment that it never came to is 0; status 0: the client had gone.

    begun_s: when the event loop came to it, with its body complete.
    parent_id: the client's span, 0 if it has none. executions: the batches that its rows were in. batches:
    those that this record tells about; each is told once, by one of its requests.
    """

    trace_id: bytes
    span_id: int
    parent_id: int
    tracestate: str
    offset_ns: int
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
    """A record behind its length."""
    record = _encoder.encode(request)
    return len(record).to_bytes(LENGTH_BYTES, "big") + record


def unpack_records(buffer: bytearray) -> Iterator[RequestRecord]:
    """The whole records at the front of a buffer, which keeps what is still incomplete."""
    first = 0
    while len(buffer) - first >= LENGTH_BYTES:
        start = first + LENGTH_BYTES
        end = start + int.from_bytes(buffer[first:start], "big")
        if len(buffer) < end:
            break
        yield _decoder.decode(buffer[start:end])
        first = end
    del buffer[:first]
