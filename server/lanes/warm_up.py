"""Executes small batches of each shape once, so that no client waits for first-time initialization."""

from __future__ import annotations

import numpy as np

from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import Batch, Block
from polyrec.models.schema.schema import Role, Schema

ROWS = (1, 64)


def warm_up(runtime: Runtime, schema: Schema) -> None:
    """Executes small and larger batches, plain and ranked, with the hottest row of every table."""
    for rows in ROWS:
        context, candidate = _hottest(schema, "context", rows), _hottest(schema, "candidate", rows)
        runtime.predict(Batch(context, candidate))
        first = np.zeros(1, np.int64)
        runtime.predict(Batch(context.take(first), candidate, np.zeros(rows, np.int64)))


def _hottest(schema: Schema, role: Role, rows: int) -> Block:
    """Returns a block with rank 0 in all single-valued features and bags, and zeros in dense features."""
    layout = schema.layout(role)
    values = rows * len(layout.bags)
    return Block(
        np.zeros((rows, len(layout.dense)), np.float32),
        np.zeros((rows, len(layout.singles)), np.int64),
        np.zeros(values, np.int64),
        np.arange(values + 1, dtype=np.int64),
    )
