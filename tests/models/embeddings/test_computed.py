from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.embeddings.computed import ComputedStage, Encoding, HybridStage, StoredPrefix
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.embeddings.table import TableStage
from polyrec.models.schema.schema import Schema
from tests.models.random_batches import random_batch, random_schema, random_table_rows

ENCODING = Encoding(k=8, m=1000, hidden=(6,), seed=5)


def stage_with(schema: Schema, table_rows: dict[str, int], cuts: dict[str, int], seed: int) -> ComputedStage:
    random = np.random.default_rng(seed)
    ids = np.concatenate([random.permutation(table_rows[t]) for t in schema.tables])
    stored = torch.from_numpy(random.standard_normal((sum(cuts.values()), 3)).astype(np.float32))
    stage = ComputedStage(schema, table_rows, ENCODING, 3, StoredPrefix(cuts, stored), ids)
    stage.initialize(torch.Generator().manual_seed(seed), [0.5] * len(schema.tables))
    return stage


@given(st.integers(0, 10_000), st.integers(0, 6), st.booleans())
def test_vectors_equal_a_table_of_stored_and_computed_rows(seed: int, rows: int, ranking: bool) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    table_rows = random_table_rows(random, schema)
    cuts = {t: int(random.integers(0, n + 1)) for t, n in table_rows.items()}
    stage = stage_with(schema, table_rows, {t: cuts[t] for t in schema.tables}, seed)
    fused = FusedRows(schema, table_rows)
    with torch.inference_mode():
        # the slow way: every row of every table, stored ones first, computed ones one at a time
        weight = torch.cat([stage.vectors(np.array([r])) for r in range(fused.total)])
        start = 0
        for table in fused.tables:
            base, cut = fused.base[table], cuts[table]
            assert torch.equal(weight[base : base + cut], stage.store.weight[start : start + cut])
            start += cut
        batch = random_batch(random, schema, table_rows, rows, contexts=2 if ranking else None)
        expected = TableStage(schema, table_rows, weight)(batch)
        for stage.distinct in (True, False):
            for a, b in zip(stage(batch), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_another_popularity_order_gives_an_id_the_same_vector() -> None:
    schema = random_schema(np.random.default_rng(3))
    table_rows = dict.fromkeys(schema.tables, 12)
    stage = stage_with(schema, table_rows, dict.fromkeys(schema.tables, 0), 0)
    other = stage_with(schema, table_rows, dict.fromkeys(schema.tables, 0), 1)
    other.decoders.load_state_dict(stage.decoders.state_dict())
    with torch.inference_mode():
        everything = np.arange(12 * len(table_rows))
        by_id = [s.vectors(everything)[np.argsort(s._ids[:12])] for s in (stage, other)]
    np.testing.assert_allclose(by_id[0], by_id[1], atol=1e-6)


def test_distinct_tables_share_no_codes() -> None:
    schema = random_schema(np.random.default_rng(3))
    assert len(schema.tables) > 1
    table_rows = dict.fromkeys(schema.tables, 4)
    stage = stage_with(schema, table_rows, dict.fromkeys(schema.tables, 0), 0)
    codes = stage.hashes(torch.arange(4 * len(table_rows)))
    assert len(torch.unique(codes, dim=0)) == 4 * len(table_rows)


def test_gradients_reach_stored_rows_and_decoders() -> None:
    random = np.random.default_rng(0)
    schema = random_schema(random)
    table_rows = dict.fromkeys(schema.tables, 10)
    stage = stage_with(schema, table_rows, dict.fromkeys(schema.tables, 5), 0)
    vectors = stage(random_batch(random, schema, table_rows, 20))
    (vectors.context.square().sum() + vectors.candidate.square().sum()).backward()
    assert stage.store.weight.grad is not None
    assert stage.store.weight.grad.is_sparse
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in stage.dense_parameters())


def test_hybrid_puts_stored_before_computed_vectors() -> None:
    random = np.random.default_rng(2)
    schema = random_schema(random)
    table_rows = dict.fromkeys(schema.tables, 10)
    computed = stage_with(schema, table_rows, dict.fromkeys(schema.tables, 0), 0)
    table = TableStage.initial(schema, table_rows, 3, 0)
    batch = random_batch(random, schema, table_rows, 5, contexts=2)
    with torch.inference_mode():
        both = HybridStage(table, computed)(batch)
        stored = [v.clone() for v in table(batch)]
        for got, a, b in zip(both, stored, computed(batch), strict=True):
            np.testing.assert_array_equal(got, torch.cat((a, b), dim=1))


@pytest.mark.parametrize(("cuts", "rows", "reason"), [(11, 11, "beyond"), (2, 1, "rows are stored")])
def test_cuts_that_do_not_fit_are_rejected(cuts: int, rows: int, reason: str) -> None:
    schema = random_schema(np.random.default_rng(0))
    table = next(iter(schema.tables))
    with pytest.raises(ValueError, match=reason):
        ComputedStage(
            schema,
            dict.fromkeys(schema.tables, 10),
            ENCODING,
            3,
            StoredPrefix({table: cuts}, torch.zeros(rows, 3)),
            np.zeros(10, np.int64),
        )
