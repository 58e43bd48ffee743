from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.errors import FeatureError
from polyrec.models.schema.id_columns import IdColumns, RankTable, column_order
from polyrec.models.schema.schema import Categorical
from polyrec.models.schema.vocabulary import Vocabulary

SIZES = {"a": 3, "b": 1, "c": 7}


def vocabulary(table: str, order: np.ndarray) -> Vocabulary:
    counts = np.zeros(order.size, np.int64)
    return Vocabulary(table, "integer", order.size, order.astype(np.int64), counts, specials=False)


@given(st.integers(0, 2**32), st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.booleans())
def test_ids_become_the_ranks_of_their_tables(seed: int, tables: list[str], identity: bool) -> None:
    random = np.random.default_rng(seed)
    vocabularies = {
        t: vocabulary(t, np.arange(n) if identity else random.permutation(n)) for t, n in SIZES.items()
    }
    features = [Categorical(name=f"f{i}", table=t, type="integer") for i, t in enumerate(tables)]
    ids = np.stack([random.integers(0, SIZES[t], 5) for t in tables], axis=1)
    expected = [vocabularies[t].rank_of_id[ids[:, i]] for i, t in enumerate(tables)]
    assert np.array_equal(IdColumns(features, RankTable(vocabularies))(ids), np.stack(expected, axis=1))


@pytest.mark.parametrize("bad", [-1, 7, 2**62])
def test_an_id_out_of_range_is_rejected_by_feature(bad: int) -> None:
    vocabularies = {t: vocabulary(t, np.arange(n)[::-1]) for t, n in SIZES.items()}
    features = [Categorical(name=f"of_{t}", table=t, type="integer") for t in SIZES]
    with pytest.raises(FeatureError, match=rf"feature 'of_c': id {bad} is outside \[0, 7\)"):
        IdColumns(features, RankTable(vocabularies))(np.array([[0, 0, 0], [0, 0, bad]]))


def test_adjacent_columns_are_a_slice() -> None:
    assert column_order(["x", "y", "z"], ["y", "z"]) == slice(1, 3)
    assert column_order(["x", "y"], []) == slice(0, 0)
    assert np.array_equal(column_order(["x", "y", "z"], ["z", "x"]), [2, 0])
