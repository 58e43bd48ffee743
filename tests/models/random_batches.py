"""Random schemas and batches for tests: seeded, valid, small."""

from __future__ import annotations

import numpy as np

from polyrec.models.schema.batch import I64, Batch, Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Dense, Label, Role, Schema, Split


def random_schema(random: np.random.Generator) -> Schema:
    """Features of both roles, single- and multi-valued, some sharing a table."""
    categorical: list[Categorical] = []
    for role in ("context", "candidate"):
        for i in range(int(random.integers(0, 4))):
            pooling = [None, None, "sum", "mean"][int(random.integers(4))]
            table = "shared" if random.random() < 0.4 else None
            categorical.append(Categorical(name=f"{role}_{i}", role=role, table=table, pooling=pooling))
    categorical.append(Categorical(name="last"))
    dense = [
        Dense(name=f"d{i}", role="context" if random.random() < 0.5 else "candidate")
        for i in range(int(random.integers(0, 4)))
    ]
    return Schema(
        name="random",
        dense=tuple(dense),
        categorical=tuple(categorical),
        label=Label(column="label"),
        split=Split(rule="hash", columns=("last",)),
    )


def random_table_rows(random: np.random.Generator, schema: Schema) -> dict[str, int]:
    return {table: int(random.integers(1, 30)) for table in schema.tables}


def random_block(
    random: np.random.Generator, schema: Schema, role: Role, table_rows: dict[str, int], rows: int
) -> Block:
    layout = schema.layout(role)
    ranks = np.empty((rows, len(layout.singles)), np.int64)
    for i, f in enumerate(layout.singles):
        ranks[:, i] = random.integers(0, table_rows[f.table_name], rows)
    values, lengths = [], []
    for _ in range(rows):
        for f in layout.bags:
            length = int(random.integers(0, 5))
            lengths.append(length)
            values.append(random.integers(0, table_rows[f.table_name], length))
    return Block(
        random.standard_normal((rows, len(layout.dense))).astype(np.float32),
        ranks,
        np.concatenate(values).astype(np.int64) if values else np.empty(0, np.int64),
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
    )


def random_batch(
    random: np.random.Generator,
    schema: Schema,
    table_rows: dict[str, int],
    rows: int,
    contexts: int | None = None,
) -> Batch:
    """A plain batch, or with `contexts` a ranking batch of that many contexts."""
    candidate = random_block(random, schema, "candidate", table_rows, rows)
    if contexts is None:
        return Batch(random_block(random, schema, "context", table_rows, rows), candidate)
    context = random_block(random, schema, "context", table_rows, contexts)
    return Batch(context, candidate, random.integers(0, contexts, rows))


def random_ids(encoder: Encoder, rows: int, random: np.random.Generator) -> Batch:
    """A plain batch of ids, of which a fifth are unknown and a fifth missing; lists of 0 to 3 values."""
    schema = encoder.schema

    def ids(feature: Categorical, n: int) -> I64:
        v = encoder.vocabulary(feature)
        kind = random.random(n)
        known = random.integers(0, v.size, n)
        return np.where(kind < 0.2, v.oov_id, np.where(kind < 0.4, v.missing_id, known))

    singles = np.stack([ids(f, rows) for f in schema.singles], 1)
    bags = {}
    for f in schema.categorical:
        if f.multi:
            lengths = random.integers(0, 4, rows)
            bags[f.name] = ids(f, int(lengths.sum())), lengths
    dense = random.normal(0, 1, (rows, len(schema.dense))).astype(np.float32)
    return encoder.from_ids(dense, singles, bags)
