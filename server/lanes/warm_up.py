"""First-time set-up is paid before the first client comes: small batches of each shape, executed once."""

from __future__ import annotations

import numpy as np

from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import Batch, Block
from polyrec.models.schema.schema import Role, Schema

ROWS = (1, 64)


def warm_up(runtime: Runtime, schema: Schema) -> None:
    """Executes a small and a larger batch of each kind, of the hottest row of every table."""
    for rows in ROWS:
        context, candidate = _hottest(schema, "context", rows), _hottest(schema, "candidate", rows)
        runtime.predict(Batch(context, candidate))
        first = np.zeros(1, np.int64)
        runtime.predict(Batch(context.take(first), candidate, np.zeros(rows, np.int64)))


def _hottest(schema: Schema, role: Role, rows: int) -> Block:
    """Rank 0 in every single-valued feature, one such value in every bag, zero in every dense one."""
    layout = schema.layout(role)
    values = rows * len(layout.bags)
    return Block(
        np.zeros((rows, len(layout.dense)), np.float32),
        np.zeros((rows, len(layout.singles)), np.int64),
        np.zeros(values, np.int64),
        np.arange(values + 1, dtype=np.int64),
    )
