"""Records that the server sends to the writer of the prediction log, as msgpack."""

from __future__ import annotations

import msgspec

from polyrec.server.record_pipe import framed


class Prediction(msgspec.Struct, array_like=True, frozen=True, tag="prediction"):
    """One answered request.

    ranking: whether it asked /v1/rank, or /v1/predict. at_us: when its answer was written, Unix time in
    microseconds. scores: float32 bytes in the order of the request's rows. reason: why quality was degraded.
    version: of the bundle. body: decompressed.
    """

    request_id: str
    ranking: bool
    at_us: int
    path: str
    version: str
    reason: str | None
    scores: bytes
    body: bytes


class Feedback(msgspec.Struct, array_like=True, frozen=True, tag="feedback"):
    """Labels of rows of one request. client: who sent them. at_us: when, Unix time in microseconds."""

    request_id: str
    client: str
    at_us: int
    rows: list[int]
    labels: list[float]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Prediction | Feedback] = msgspec.msgpack.Decoder(Prediction | Feedback)


def pack(record: Prediction | Feedback) -> bytes:
    """Encodes a record with its length in front."""
    return framed(_encoder.encode(record))


def decode(record: bytes) -> Prediction | Feedback:
    """Decodes a record without its length. Raises msgspec.ValidationError."""
    return _decoder.decode(record)
