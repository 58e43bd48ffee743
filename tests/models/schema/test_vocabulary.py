from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.errors import FeatureError
from polyrec.models.schema.vocabulary import REJECTED, Vocabulary, ids_of_ranks

Value = str | int | None
Oov = Literal["row", "refuse"]

STRINGS = st.text("abä日 ", max_size=3)
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 12)


def build(
    type_: Literal["string", "integer"],
    values: list[str] | list[int] | int,
    seed: int,
    specials: bool = True,
    oov: Oov = "row",
) -> Vocabulary:
    """values: a list, or how many integers stand for themselves."""
    size = values if isinstance(values, int) else len(values)
    rows = size + 2 * specials
    stored = None
    if not isinstance(values, int):
        stored = pa.array(values, pa.string() if type_ == "string" else pa.int64())
    ranks = np.random.default_rng(seed).permutation(rows)
    return Vocabulary("t", type_, size, ranks, np.zeros(rows, np.int64), stored, specials, oov)


def reference(v: Vocabulary, values: list[str] | list[int] | int, asked: list[Value]) -> list[int]:
    """A dictionary, and two special rows."""
    known = list(range(values)) if isinstance(values, int) else values
    ids: dict[Value, int] = {value: i for i, value in enumerate(known)}
    out = []
    for value in asked:
        if value in ids:
            out.append(int(v.rank_of_id[ids[value]]))
        elif value is None:
            out.append(int(v.rank_of_id[len(known)]))
        else:
            out.append(int(v.rank_of_id[len(known) + 1]))
    return out


@given(st.lists(STRINGS, unique=True), st.lists(st.none() | STRINGS), st.integers(0, 9))
def test_strings_get_the_ranks_of_a_dictionary(values: list[str], asked: list[Value], seed: int) -> None:
    v = build("string", values, seed)
    expected = reference(v, values, asked)
    assert v.encode("f", asked).tolist() == expected
    assert v.encode_arrow(pa.array(asked, pa.string())).tolist() == expected
    assert v.encode_arrow(pa.array(asked, pa.large_string())).tolist() == expected


@given(st.lists(INTEGERS, unique=True), st.lists(st.none() | INTEGERS), st.integers(0, 9))
def test_integers_get_the_ranks_of_a_dictionary(values: list[int], asked: list[Value], seed: int) -> None:
    v = build("integer", values, seed)
    expected = reference(v, values, asked)
    assert v.encode("f", asked).tolist() == expected
    assert v.encode_arrow(pa.array(asked, pa.int64())).tolist() == expected


@given(st.integers(1, 9), st.lists(st.none() | INTEGERS), st.integers(0, 9))
def test_a_range_of_integers_gets_the_ranks_of_a_dictionary(size: int, asked: list[Value], seed: int) -> None:
    v = build("integer", size, seed)
    expected = reference(v, size, asked)
    assert v.encode("f", asked).tolist() == expected
    assert v.encode_arrow(pa.array(asked, pa.int64())).tolist() == expected


def test_an_integer_beyond_64_bits_is_unknown() -> None:
    v = build("integer", 3, 0)
    assert v.encode("f", [1, 2**70]).tolist() == [v.rank_of_id[1], v.oov_rank]


def test_an_unknown_value_is_rejected_where_the_table_says_so() -> None:
    v = build("string", ["a"], 0, oov="refuse")
    assert v.encode("f", ["a", None]).tolist() == [v.rank_of_id[0], v.missing_rank]
    with pytest.raises(FeatureError, match=r"feature 'f': unknown value 'x' \(position 1\)"):
        v.encode("f", ["a", "x"])
    with pytest.raises(FeatureError) as caught:
        v.encode("f", ["x" * 10**6])
    assert len(str(caught.value)) < 200
    assert v.encode_arrow(pa.array(["a", "x"])).tolist() == [v.rank_of_id[0], -1]


def test_a_missing_value_is_rejected_where_there_is_no_row_for_it() -> None:
    for v in (build("string", ["a"], 0, specials=False), build("integer", 1, 0, specials=False)):
        with pytest.raises(FeatureError, match=r"a value is required \(position 0\)"):
            v.encode("f", [None])


@given(st.integers(1, 9), st.integers(0, 9))
def test_ids_are_ranked_by_position_and_rejected_outside(size: int, seed: int) -> None:
    v = build("integer", size, seed)
    ids = np.arange(v.rows)
    assert np.array_equal(v.ranks_of_ids("f", ids), v.rank_of_id)
    for bad in (-1, v.rows):
        with pytest.raises(FeatureError, match=rf"id {bad} is outside \[0, {v.rows}\) \(position 1\)"):
            v.ranks_of_ids("f", np.array([0, bad]))


def test_ranks_that_are_no_permutation_are_rejected() -> None:
    with pytest.raises(ValueError, match="not a permutation"):
        Vocabulary("t", "integer", 1, np.array([0, 0, 2]), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="3 rows, 2 ranks"):
        Vocabulary("t", "integer", 1, np.array([0, 1]), np.zeros(2, np.int64))


def test_ids_of_ranks_inverts_the_permutation() -> None:
    rank_of_id = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(ids_of_ranks(rank_of_id)[rank_of_id], np.arange(50))


@given(
    st.lists(STRINGS, unique=True, min_size=1),
    st.integers(0, 4),
    st.lists(st.none() | STRINGS),
    st.integers(0, 9),
)
def test_added_values_get_the_ranks_of_their_ids(
    values: list[str], reserved: int, asked: list[Value], seed: int
) -> None:
    v = build("string", values[reserved:], seed)
    size = v.size + reserved
    stored = pa.array([*values[reserved:], *[None] * reserved], pa.string())
    ranks = np.random.default_rng(seed).permutation(size + 2)
    v = Vocabulary("t", "string", size, ranks, np.zeros(size + 2, np.int64), stored)
    added = {value: int(id) for value, id in zip(values[:reserved], v.reserved(), strict=False)}
    ids = {**{value: i for i, value in enumerate(values[reserved:])}, **added}
    expected = [v.missing_id if a is None else ids.get(a, v.oov_id) for a in asked]
    other = v.with_added(added)
    assert other.encode("f", asked).tolist() == ranks[expected].tolist()
    assert other.encode_arrow(pa.array(asked, pa.string())).tolist() == ranks[expected].tolist()
    known = [REJECTED if id == v.oov_id else id for id in expected]
    assert other.ids_of_values(asked).tolist() == known
    assert v.ids_of_values(asked).tolist() == [REJECTED if id in added.values() else id for id in known]
    turned = other.reordered(ranks[::-1].copy(), np.zeros(size + 2, np.int64))
    assert turned.encode("f", asked).tolist() == ranks[::-1][expected].tolist()
