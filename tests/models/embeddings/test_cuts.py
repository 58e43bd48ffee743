from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.embeddings.cuts import stored_but_largest, stored_within, tiers_within
from polyrec.models.schema.vocabulary import Vocabulary


def vocabulary(table: str, counts: list[int]) -> Vocabulary:
    ordered = np.array(sorted(counts, reverse=True), np.int64)
    size = len(counts)
    return Vocabulary(table, "integer", size, np.arange(size), ordered, specials=False)


TABLES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=3)


@given(TABLES, st.integers(0, 16))
def test_one_threshold_keeps_as_many_accesses_as_any_choice_of_prefixes(
    tables: list[list[int]], rows: int
) -> None:
    vocabularies = {f"t{i}": vocabulary(f"t{i}", c) for i, c in enumerate(tables)}
    cuts = stored_within(vocabularies, rows)
    assert sum(cuts.values()) == min(rows, sum(map(len, tables)))
    kept = sum(int(v.counts[: cuts.get(t, 0)].sum()) for t, v in vocabularies.items())
    best = max(
        sum(int(v.counts[:n].sum()) for v, n in zip(vocabularies.values(), choice, strict=True))
        for choice in product(*(range(len(c) + 1) for c in tables))
        if sum(choice) <= rows
    )
    assert kept == best


def test_select_stores_all_but_the_largest_tables() -> None:
    vocabularies = {n: vocabulary(n, [1] * size) for n, size in (("a", 3), ("b", 9), ("c", 5))}
    assert stored_but_largest(vocabularies, 2) == {"a": 3}
    assert stored_but_largest(vocabularies, 5) == {}


@given(TABLES, st.integers(0, 40), st.integers(0, 40), st.integers(1, 7))
def test_tiers_hold_as_many_accesses_as_any_choice_of_prefixes(
    tables: list[list[int]], device: int, host: int, row_bytes: int
) -> None:
    vocabularies = {f"t{i}": vocabulary(f"t{i}", c) for i, c in enumerate(tables)}
    cuts = tiers_within(vocabularies, row_bytes, {"device": device, "host": host, "disk": 0})
    assert {t: sum(c.values()) for t, c in cuts.items()} == {t: v.rows for t, v in vocabularies.items()}
    assert min(min(c.values()) for c in cuts.values()) >= 0
    for tiers, room in ((("device",), device // row_bytes), (("device", "host"), None)):
        if room is None:
            room = device // row_bytes + host // row_bytes
        chosen = {t: sum(c[name] for name in tiers) for t, c in cuts.items()}
        assert sum(chosen.values()) <= room
        kept = sum(int(v.counts[: chosen[t]].sum()) for t, v in vocabularies.items())
        best = max(
            sum(int(v.counts[:n].sum()) for v, n in zip(vocabularies.values(), choice, strict=True))
            for choice in product(*(range(len(c) + 1) for c in tables))
            if sum(choice) <= room
        )
        assert kept == best
