from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.errors import FeatureError
from polyrec.models.schema.id_columns import FROM_FEATURES, IdColumns, RangeColumns, RankTable, column_order
from polyrec.models.schema.schema import Categorical
from polyrec.models.schema.vocabulary import DICT_LIMIT, Vocabulary

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


INTEGER_SIZES = {"a": 3, "b": 1, "big": DICT_LIMIT + 5}
"""Values of each vocabulary; the last is looked up without a dictionary."""


def integers(
    size: int,
    order: np.ndarray,
    oov: Literal["row", "refuse"] = "row",
    specials: bool = True,
    values: pa.Array | None = None,
) -> Vocabulary:
    counts = np.zeros(order.size, np.int64)
    return Vocabulary("t", "integer", size, order.astype(np.int64), counts, values, specials, oov)


@pytest.fixture(scope="module", params=[False, True], ids=["permuted", "identity"])
def vocabularies(request: pytest.FixtureRequest) -> dict[str, Vocabulary]:
    random = np.random.default_rng(7)
    return {
        table: integers(size, np.arange(size + 2) if request.param else random.permutation(size + 2))
        for table, size in INTEGER_SIZES.items()
    }


def value_of(table: str) -> st.SearchStrategy[int]:
    """Known values, those that name special rows by id, and those that are too large or negative."""
    size = INTEGER_SIZES[table]
    return st.one_of(st.integers(0, size + 2), st.integers(-(2**63), 2**63 - 1))


@given(data=st.data(), rows=st.integers(1, 5))
def test_integers_become_the_ranks_that_their_vocabularies_say(
    vocabularies: dict[str, Vocabulary], data: st.DataObject, rows: int
) -> None:
    tables = data.draw(st.lists(st.sampled_from(sorted(INTEGER_SIZES)), min_size=FROM_FEATURES, max_size=7))
    features = [Categorical(name=f"f{i}", table=t, type="integer") for i, t in enumerate(tables)]
    columns: dict[str, list[int] | None] = {}
    for f, table in zip(features, tables, strict=True):
        column = st.lists(value_of(table), min_size=rows, max_size=rows)
        drawn = data.draw(st.one_of(st.none(), column))
        if drawn is not None or data.draw(st.booleans()):
            columns[f.name] = drawn
    found = RangeColumns(features, RankTable(vocabularies))(columns, rows)
    assert found is not None
    for f, table, ranks in zip(features, tables, found, strict=True):
        values = columns.get(f.name) or [None] * rows
        assert np.array_equal(ranks, vocabularies[table].encode(f.name, values))


@pytest.mark.parametrize("odd", [None, 1.0, 2**63, -(2**70), "1"])
def test_values_that_are_not_integers_of_64_bits_are_left_to_the_vocabulary(
    vocabularies: dict[str, Vocabulary], odd: Any
) -> None:
    features = [Categorical(name=t, table=t, type="integer") for t in INTEGER_SIZES]
    features.append(Categorical(name="again", table="big", type="integer"))
    columns = {"a": [0, 1], "b": [0, odd], "big": [5, 6], "again": [7, 8]}
    assert RangeColumns(features, RankTable(vocabularies))(columns, 2) is None


def test_only_ranges_with_a_row_for_unknown_values_are_looked_up_at_once() -> None:
    kinds = {
        "listed": integers(2, np.arange(4), values=pa.array([10, 20])),
        "range": integers(2, np.arange(4)),
        "refusing": integers(2, np.arange(4), oov="refuse"),
        "bare": integers(2, np.arange(2), specials=False),
    }
    features = [Categorical(name=t, table=t, type="integer") for t in kinds]
    ranges = [Categorical(name=f"f{i}", table="range", type="integer") for i in range(FROM_FEATURES - 1)]
    found = RangeColumns([*features, *ranges], RankTable(kinds))
    assert found.places == [1, *range(4, 3 + FROM_FEATURES)]
    assert found.others == [0, 2, 3]
    few = RangeColumns(features, RankTable(kinds))
    assert (few.places, few.others) == ([], [0, 1, 2, 3])
