"""Makes the requests of benchmarks/peers: Zipf ids, as tensors of the Open Inference Protocol.

Converts `PeerRows` to bodies in the forms that servers take: independent rows as JSON or binary data, and one
context with candidates, which peers get as exploded rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from benchmarks.zipf import zipf
from polyrec.models.schema.batch import F32, I64
from polyrec.models.schema.schema import Schema

EXPONENT = 1.05


@dataclass(frozen=True, slots=True)
class PeerRows:
    """Rows of requests.

    dense: float32 [requests, rows, features]. sparse: int64 [requests, rows, features], ids. context: numbers
    of leading (dense, sparse) features that all rows of a request share.
    """

    dense: F32
    sparse: I64
    context: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.dense)


def draw(schema: Schema, ids: Sequence[I64], requests: int, rows: int, seed: int = 2) -> PeerRows:
    """Draws independent rows. ids: of each table, in popularity order."""
    random = np.random.default_rng(seed)
    dense = random.normal(size=(requests, rows, len(schema.dense))).astype(np.float32)
    sparse = np.empty((requests, rows, len(ids)), np.int64)
    for i, (table, feature) in enumerate(zip(ids, schema.categorical, strict=True)):
        assert feature.cardinality is not None
        drawn = zipf(random, feature.cardinality, EXPONENT, requests * rows)
        sparse[:, :, i] = table[drawn].reshape(requests, rows)
    return PeerRows(dense, sparse)


def share_context(rows: PeerRows, schema: Schema) -> PeerRows:
    """Gives all rows of a request the context of its first row."""
    shared = len(schema.context.dense), len(schema.context.singles)
    dense, sparse = rows.dense.copy(), rows.sparse.copy()
    dense[:, :, : shared[0]] = dense[:, :1, : shared[0]]
    sparse[:, :, : shared[1]] = sparse[:, :1, : shared[1]]
    return PeerRows(dense, sparse, shared)


def json_body(rows: PeerRows, request: int) -> bytes:
    """Returns a request of plain rows as JSON."""
    return _json({"dense": rows.dense[request], "sparse": rows.sparse[request]})


def binary_body(rows: PeerRows, request: int) -> bytes:
    """Returns a request of plain rows without JSON: `dense`, then `sparse` (JSON length 0)."""
    return b"".join((rows.dense[request].tobytes(), rows.sparse[request].tobytes()))


def ranking_body(rows: PeerRows, request: int) -> bytes:
    """Returns a request of one context with its candidates as JSON."""
    dense, sparse = rows.dense[request], rows.sparse[request]
    of_dense, of_sparse = rows.context
    return _json(
        {
            "context.dense": dense[:1, :of_dense],
            "context.sparse": sparse[:1, :of_sparse],
            "candidate.dense": dense[:, of_dense:],
            "candidate.sparse": sparse[:, of_sparse:],
        }
    )


def _json(tensors: dict[str, F32 | I64]) -> bytes:
    """Returns JSON tensors; omits those of zero width, as the protocol allows."""
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32" if array.dtype == np.float32 else "INT64",
            "data": array.ravel(),
        }
        for name, array in tensors.items()
        if array.shape[1]
    ]
    return orjson.dumps({"inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY)
