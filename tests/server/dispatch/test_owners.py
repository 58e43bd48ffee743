"""The query of each lookup of a batch, for all lookups and for some of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.batch import Batch
from polyrec.planner.routing.query import Query
from polyrec.server.dispatch.cold_rows import owners, owners_of
from tests.models.random_batches import random_batch, random_schema, random_table_rows


@given(st.integers(0, 2**32), st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 5))
def test_owners_of_lookups_are_the_queries_whose_rows_or_contexts_have_them(seed, rows, plain) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    single = schema.model_copy(
        update={"categorical": tuple(f.model_copy(update={"pooling": None}) for f in schema.categorical)}
    )
    table_rows = random_table_rows(random, single)
    batches = [
        random_batch(random, single, table_rows, n, None if i < plain else 1) for i, n in enumerate(rows)
    ]
    batch, queries = Batch.concat(batches), [Query(n, 0.0, 1.0) for n in rows]
    # one feature after another of each context, then of each row
    of_context = [i for i, one in enumerate(batches) for _ in range(one.context.ranks.size)]
    of_row = [i for i, one in enumerate(batches) for _ in range(one.candidate.ranks.size)]
    whole = np.array([*of_context, *of_row], np.int64)
    np.testing.assert_array_equal(owners(batch, queries), whole)
    lookups = np.flatnonzero(random.random(whole.size) < random.random())
    np.testing.assert_array_equal(owners_of(batch, queries, lookups), whole[lookups])
