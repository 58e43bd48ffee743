from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.encoder import Encoder
from polyrec.server.metrics.instruments import Registry
from polyrec.server.metrics.unknown_ids import UnknownIdCounter, count_of, lookups_of, rows_of
from tests.models.random_batches import random_ids


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.integers(1, 9), max_size=40), seed=st.integers(0, 2**32 - 1))
def test_counting_many_batches_at_once_counts_what_counting_each_does(
    bundle: Bundle, rows: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    family = Registry().counter("polyrec_oov_lookups", "UnknownIdCounter.", "feature")
    unknown, expected = UnknownIdCounter(bundle.encoder, family), Counter[str]()
    batches = [random_ids(bundle.encoder, n, random) for n in rows]
    for one in batches:
        expected.update(bundle.encoder.unknown(one))
    again = Encoder(bundle.encoder.schema, bundle.encoder.vocabularies, bundle.encoder.standards)
    encoders = [None if random.random() < 0.5 else again for _ in batches]
    unknown.count(encoders, [lookups_of(one) for one in batches])
    for one in batches:
        lookups = lookups_of(one)
        blocks = (one.context, one.candidate)
        assert rows_of(lookups) == one.rows
        assert count_of(lookups) == sum(block.ranks.size + block.bag_values.size for block in blocks)
    assert {name: child.value for (name,), child in family.children.items() if child.value} == dict(expected)
    assert {name for (name,) in family.children} == {f.name for f in bundle.encoder.schema.categorical}
