"""Records that the server sends to the writer of the prediction log, as msgpack."""

from __future__ import annotations

from typing import Self

import msgspec
import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.server.codecs.rows import RankedTensors, RoleTensors, Tensors
from polyrec.server.record_pipe import framed

ID_BYTES = 8


class JsonRows(msgspec.Struct, array_like=True, frozen=True, tag="json"):
    """The decompressed body of a request. ranking: whether its path is /v1/rank, not /v1/predict."""

    ranking: bool
    body: bytes


class IdTensors(msgspec.Struct, array_like=True, frozen=True):
    """Ids of an inference protocol request, of one role or both: `RoleTensors` as bytes, row by row.

    dense: float32; sparse: int64; bags: ids and lengths by feature, int64.
    """

    rows: int
    dense: bytes
    sparse: bytes
    bags: dict[str, tuple[bytes, bytes]]

    @classmethod
    def from_tensors(cls, tensors: RoleTensors | Tensors) -> Self:
        bags = {name: (_bytes(ids), _bytes(lengths)) for name, (ids, lengths) in tensors.bags.items()}
        return cls(tensors.rows, tensors.dense.tobytes(), tensors.sparse.tobytes(), bags)

    def read(self) -> RoleTensors:
        """The inverse of `from_tensors`."""
        dense = np.frombuffer(self.dense, np.float32).reshape(self.rows, -1)
        sparse = np.frombuffer(self.sparse, np.int64).reshape(self.rows, -1)
        bags = {name: (_integers(ids), _integers(lengths)) for name, (ids, lengths) in self.bags.items()}
        return RoleTensors(dense, sparse, bags)


class IdRows(msgspec.Struct, array_like=True, frozen=True, tag="ids"):
    """Rows of stable ids: `Tensors` or `RankedTensors` as bytes.

    context: ids of a ranking's context; None if `rows` has the features of both roles. context_row: int64
    [rows], only in a ranking. request_lengths: int64, see `Tensors`.
    """

    context: IdTensors | None
    rows: IdTensors
    context_row: bytes | None
    request_lengths: bytes | None

    @classmethod
    def from_rows(cls, rows: Tensors | RankedTensors) -> Self:
        """Returns the record form of a request's rows."""
        lengths = None if rows.request_lengths is None else _bytes(rows.request_lengths)
        if isinstance(rows, Tensors):
            return cls(None, IdTensors.from_tensors(rows), None, lengths)
        context, candidate = IdTensors.from_tensors(rows.context), IdTensors.from_tensors(rows.candidate)
        return cls(context, candidate, _bytes(rows.context_row), lengths)

    @property
    def bag_ids(self) -> int:
        """Number of ids in all bags."""
        blocks = (self.rows,) if self.context is None else (self.context, self.rows)
        return sum(len(ids) for block in blocks for ids, _ in block.bags.values()) // ID_BYTES

    def read(self) -> Tensors | RankedTensors:
        """The inverse of `from_rows`, without features of the request."""
        lengths = None if self.request_lengths is None else _integers(self.request_lengths)
        rows = self.rows.read()
        if self.context is None or self.context_row is None:
            return Tensors(rows.dense, rows.sparse, rows.bags, self.rows.rows, None, lengths)
        return RankedTensors(self.context.read(), rows, _integers(self.context_row), None, lengths)


class Prediction(msgspec.Struct, array_like=True, frozen=True, tag="prediction"):
    """One answered request.

    at_us: time at which its answer was written, Unix time in microseconds. reason: why quality was degraded.
    version: version of the bundle. scores: float32 bytes in the order of the request's rows.
    """

    request_id: str
    at_us: int
    path: str
    version: str
    reason: str | None
    scores: bytes
    rows: JsonRows | IdRows


class VocabularyFile(msgspec.Struct, array_like=True, frozen=True, tag="vocabulary"):
    """Location of the values of a version's ids; sent before its first request with ids.

    sha256: checksum of the file. descriptors: `VocabularyDescriptor` by table, as JSON.
    """

    version: str
    file: str
    sha256: str
    descriptors: bytes


class Feedback(msgspec.Struct, array_like=True, frozen=True, tag="feedback"):
    """Labels of one request's rows. client: their sender. at_us: time received, Unix time in microseconds."""

    request_id: str
    client: str
    at_us: int
    rows: list[int]
    labels: list[float]


Record = Prediction | VocabularyFile | Feedback
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def pack(record: Record) -> bytes:
    """Encodes a record, prefixed with its length."""
    return framed(_encoder.encode(record))


def decode(record: bytes) -> Record:
    """Decodes a record without its length. Raises msgspec.ValidationError."""
    return _decoder.decode(record)


def _bytes(integers: I64) -> bytes:
    return integers.astype(np.int64, copy=False).tobytes()


def _integers(raw: bytes) -> I64:
    return np.frombuffer(raw, np.int64)
