from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.data import counts as module
from polyrec.models.data.counts import AccessCounts
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Categorical

ITEM = Categorical(name="item", min_count=2, max_values=4)
BAG = Categorical(name="bag", table="item", min_count=2, max_values=4, pooling="sum", max_length=2)

VALUES = st.none() | st.sampled_from("abcdefg")
BATCHES = st.lists(st.lists(st.tuples(VALUES, st.lists(VALUES, max_size=4), st.booleans()), max_size=6))


@given(batches=BATCHES, limit=st.integers(1, 20))
def test_values_are_chosen_by_all_rows_and_ordered_by_the_sampled_ones(
    batches: list[list[tuple[str | None, list[str | None], bool]]], limit: int
) -> None:
    every: Counter[str | None] = Counter()
    some: Counter[str | None] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MERGE_FROM", limit)
        accesses = AccessCounts([ITEM, BAG])
        accesses.add(ITEM, pa.array([], pa.string()), np.zeros(0, bool))
        for rows in batches:
            sampled = np.array([s for *_, s in rows], bool)
            accesses.add(ITEM, pa.array([item for item, *_ in rows], pa.string()), sampled)
            accesses.add(BAG, pa.array([bag for _, bag, _ in rows], pa.list_(pa.string())), sampled)
            for item, bag, in_sample in rows:
                looked_up = [item, *bag[:2]]
                every.update(looked_up)
                some.update(looked_up if in_sample else [])
        v = accesses.vocabulary("item", whole=False)
    frequent = [(value, n) for value, n in every.items() if value is not None and n >= 2]
    kept = [value for value, _ in sorted(frequent, key=lambda item: (-item[1], item[0]))[:4]]
    assert v.values.to_pylist() == kept
    by_id = [some[value] for value in kept] + [some[None]]
    by_id.append(some.total() - sum(by_id))
    assert v.counts[v.rank_of_id].tolist() == by_id
    assert v.counts.tolist() == sorted(by_id, reverse=True)


def test_partial_counts_stay_in_proportion_to_the_different_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MERGE_FROM", 100)
    accesses = AccessCounts([ITEM])
    most = 0
    for start in range(200):
        names = [f"{(start * 7 + i) % 50}" for i in range(40)]
        accesses.add(ITEM, pa.array(names), np.ones(40, bool))
        most = max(most, sum(part.num_rows for part in accesses._parts))
    assert most <= 140


def test_a_value_that_is_not_utf8_is_refused_before_training() -> None:
    latin = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xe4")]
    )
    accesses = AccessCounts([ITEM])
    accesses.add(ITEM, latin, np.ones(1, bool))
    with pytest.raises(DataError, match="a value of table 'item' is not UTF-8"):
        accesses.vocabulary("item", whole=True)
