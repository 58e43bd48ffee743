from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.data.counts import AccessCounts
from polyrec.models.schema.continuation import NEW, PreviousVocabularies, old_ranks
from polyrec.models.schema.schema import Categorical
from polyrec.models.schema.vocabulary import Vocabulary

FEATURE = Categorical(name="f", min_count=2)


def counted(
    values: list[str | None], previous: PreviousVocabularies | None = None, feature: Categorical = FEATURE
) -> Vocabulary:
    counts = AccessCounts([feature])
    counts.add(feature, pa.array(values, pa.string()), np.ones(len(values), bool))
    return counts.vocabulary("f", True, previous)


def counts_of(v: Vocabulary) -> dict[str | None, int]:
    """Lookups counted, by value; those of unknown values under '?'."""
    assert v.values is not None
    by_id = v.counts[v.rank_of_id].tolist()
    return dict(zip([*v.values.to_pylist(), None, "?"], by_id, strict=True))


OLD = counted(["a"] * 8 + ["b"] * 6 + ["c"] * 3 + ["d"] * 2 + [None] * 4)


def test_known_values_keep_their_ids_and_new_ones_come_after_them() -> None:
    new = counted(["e", "c", "g", "e", "c", "e", "b", "h", "h", None], PreviousVocabularies({"f": OLD}))
    assert OLD.values is not None
    assert new.values is not None
    assert OLD.values.to_pylist() == ["a", "b", "c", "d"]
    assert new.values.to_pylist() == ["a", "b", "c", "d", "e", "h"]
    # half of the counts before, and those of the new data; 'g' occurs once, too rarely for a row
    assert counts_of(new) == {"a": 4, "b": 4, "c": 3, "d": 1, "e": 3, "h": 2, None: 3, "?": 1}


def test_ranks_follow_the_counts_and_rows_move_with_their_values() -> None:
    new = counted(["d"] * 9 + ["e", "e"], PreviousVocabularies({"f": OLD}))
    assert (np.diff(new.counts) <= 0).all()
    assert new.encode("f", ["d"]).tolist() == [0]
    source = old_ranks(OLD, new)
    for value in ("a", "b", "c", "d", None, "unknown"):
        assert source[new.encode("f", [value])] == OLD.encode("f", [value])
    assert source[new.encode("f", ["e"])] == NEW


def test_new_values_take_the_rows_of_those_unseen_for_long() -> None:
    """'c' and 'd' were rarely looked up before; 'd' is looked up again."""
    new = counted(["d", "x", "x", "x", "y", "y"], PreviousVocabularies({"f": OLD}, forget=3))
    assert new.values is not None
    assert new.values.to_pylist() == ["a", "b", "x", "d", "y"]
    assert (old_ranks(OLD, new)[new.encode("f", ["x", "y"])] == NEW).all()
    kept = counted(["d"], PreviousVocabularies({"f": OLD}, forget=3))
    assert kept.values is not None
    assert kept.values.to_pylist() == ["a", "b", "c", "d"], "no new value needs the row"


def test_a_vocabulary_that_is_full_takes_only_what_leaves_room() -> None:
    full = FEATURE.model_copy(update={"max_values": 5})
    values = ["x", "x", "x", "y", "y", "z", "z"]
    new = counted(values, PreviousVocabularies({"f": OLD}), full)
    assert new.values is not None
    assert new.values.to_pylist() == ["a", "b", "c", "d", "x"]
    forgetting = counted(values, PreviousVocabularies({"f": OLD}, forget=2), full)
    assert forgetting.values is not None
    assert forgetting.values.to_pylist() == ["a", "b", "c", "x", "y"]


def test_stored_rows_stay_before_computed_ones() -> None:
    new = counted(["d"] * 50 + ["e"] * 60, PreviousVocabularies({"f": OLD}, stored={"f": 2}))
    stored = set(OLD.encode("f", ["a", "b", "c", "d", None]).tolist()) & {0, 1}
    assert set(old_ranks(OLD, new)[:2].tolist()) == stored
    assert (np.diff(new.counts) <= 0).all()


def test_integers_of_a_fixed_range_only_change_ranks() -> None:
    feature = Categorical(name="f", type="integer", cardinality=4)
    tables = []
    for values, previous in (([0, 0, 1, 3], None), ([3, 3, 3, 9], "first")):
        counts = AccessCounts([feature])
        counts.add(feature, pa.array(values, pa.int64()), np.ones(4, bool))
        before = PreviousVocabularies({"f": tables[0]}) if previous else None
        tables.append(counts.vocabulary("f", True, before))
    old, new = tables
    assert (new.size, new.values) == (4, None)
    assert new.encode("f", [3]).tolist() == [0]
    assert old_ranks(old, new)[new.rank_of_id].tolist() == old.rank_of_id.tolist()


@given(
    st.lists(
        st.lists(st.sampled_from([*"abcdefghijkl", None]), min_size=1, max_size=60), min_size=2, max_size=4
    )
)
def test_ids_stay_over_any_number_of_continuations(parts: list[list[str | None]]) -> None:
    v = counted(parts[0])
    for part in parts[1:]:
        new = counted(part, PreviousVocabularies({"f": v}))
        assert v.values is not None
        assert new.values is not None
        assert new.values.slice(0, v.size).equals(v.values)
        frequent = {x for x in part if x is not None and part.count(x) >= 2}
        assert set(new.values.to_pylist()) == set(v.values.to_pylist()) | frequent
        source = old_ranks(v, new)
        assert sorted(source[source != NEW].tolist()) == list(range(v.rows))
        v = new


@pytest.mark.parametrize("forget", [None, 0])
def test_order_is_kept_without_new_values(forget: int | None) -> None:
    new = counted(["a", None], PreviousVocabularies({"f": OLD}, forget))
    assert new.values == OLD.values
    assert new.encode("f", ["a", "b", "c", "d"]).tolist() == OLD.encode("f", ["a", "b", "c", "d"]).tolist()


def test_new_values_take_the_reserved_ids_first() -> None:
    values = pa.array(["a", None, "b", None], pa.string())
    ranks = np.array([0, 3, 1, 4, 2, 5])
    old = Vocabulary("f", "string", 4, ranks, np.array([9, 8, 7, 0, 0, 0]), values)
    new = counted(["x", "x", "b"], PreviousVocabularies({"f": old}))
    assert new.values is not None
    assert new.values.to_pylist() == ["a", "x", "b", None]
    source = old_ranks(old, new)
    assert source[new.encode("f", ["a", "b", "x"])].tolist() == [0, 1, NEW]
    # what no value took keeps its row
    assert source[new.rank_of_id[3]] == ranks[3]
    more = counted(["x", "x", "y", "y", "z", "z"], PreviousVocabularies({"f": old}))
    assert more.values is not None
    assert sorted(more.values.to_pylist()) == ["a", "b", "x", "y", "z"]
