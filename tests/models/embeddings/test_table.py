from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.embeddings.table import TableStage
from polyrec.models.schema.batch import F32, Batch
from polyrec.models.schema.schema import Schema
from tests.models.random_batches import random_batch, random_schema, random_table_rows


def reference(schema: Schema, tables: dict[str, F32], batch: Batch) -> tuple[F32, F32]:
    """Row by row, feature by feature, one table each: vectors of contexts, and of candidates."""
    width = next(iter(tables.values())).shape[1]
    out = []
    for layout, block in ((schema.context, batch.context), (schema.candidate, batch.candidate)):
        rows = []
        for row in range(block.rows):
            vectors = []
            for i, f in enumerate(layout.singles):
                vectors.append(tables[f.table_name][block.ranks[row, i]])
            for i, f in enumerate(layout.bags):
                at = row * len(layout.bags) + i
                ids = block.bag_values[block.bag_offsets[at] : block.bag_offsets[at + 1]]
                total = tables[f.table_name][ids].sum(axis=0, dtype=np.float32)
                vectors.append(total / len(ids) if f.pooling == "mean" and len(ids) else total)
            rows.append(vectors)
        out.append(np.array(rows, np.float32).reshape(block.rows, len(layout.categorical), width))
    return out[0], out[1]


@given(st.integers(0, 10_000), st.integers(0, 9), st.booleans())
def test_fused_lookup_equals_one_table_at_a_time(seed: int, rows: int, ranking: bool) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    table_rows = random_table_rows(random, schema)
    tables = {t: random.standard_normal((n, 3)).astype(np.float32) for t, n in table_rows.items()}
    weight = torch.from_numpy(np.concatenate([tables[t] for t in schema.tables]))
    stage = TableStage(schema, table_rows, weight)
    batch = random_batch(random, schema, table_rows, rows, contexts=2 if ranking else None)
    expected = reference(schema, tables, batch)
    with torch.inference_mode():
        for got, wanted in zip(stage(batch), expected, strict=True):
            np.testing.assert_allclose(got.numpy(), wanted, atol=1e-6)
    for got, wanted in zip(stage(batch), expected, strict=True):
        np.testing.assert_allclose(got.detach().numpy(), wanted, atol=1e-6)


@given(st.integers(0, 10_000))
def test_shared_contexts_give_the_same_vectors_as_repeated_ones(seed: int) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    table_rows = random_table_rows(random, schema)
    stage = TableStage.initial(schema, table_rows, 4, seed)
    batch = random_batch(random, schema, table_rows, 7, contexts=3)
    with torch.inference_mode():
        context, candidate = (v.clone() for v in stage(batch))
        exploded = stage(batch.exploded())
    assert torch.equal(context[torch.from_numpy(batch.context_row)], exploded.context)
    assert torch.equal(candidate, exploded.candidate)


def test_gradient_touches_only_the_rows_looked_up() -> None:
    random = np.random.default_rng(0)
    schema = random_schema(random)
    table_rows = dict.fromkeys(schema.tables, 20)
    stage = TableStage.initial(schema, table_rows, 4, 0)
    vectors = stage(random_batch(random, schema, table_rows, 2))
    (vectors.context.sum() + vectors.candidate.sum()).backward()
    gradient = stage.store.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    assert 0 < len(gradient.coalesce().indices()[0]) < stage.store.weight.shape[0]


def test_a_weight_of_the_wrong_size_is_rejected() -> None:
    schema = random_schema(np.random.default_rng(1))
    with pytest.raises(ValueError, match="weight has 1 rows"):
        TableStage(schema, dict.fromkeys(schema.tables, 5), torch.zeros(1, 4))
