from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.dedup.distinct import Column, Jagged, distinct, take
from polyrec.models.schema.dedup.grouping import INDEX_BYTES, Names, Repeats, choose_groups

ROWS = 400


def stepping(random: np.random.Generator, change: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Values that never come again, each kept from one row to the next with chance 1 - change."""
    return np.cumsum(random.random(ROWS) < change)


def sample(seed: int) -> dict[str, Column]:
    """user, tags and device change together; city at other rows; item at every row."""
    random = np.random.default_rng(seed)
    user = stepping(random, 0.2)
    lengths = np.where(np.arange(user.max() + 1) % 3, 4, 0)[user]
    return {
        "item": np.arange(ROWS),
        "user": user,
        "city": stepping(random, 0.25),
        "tags": Jagged(np.repeat(user, lengths), np.concatenate(([0], np.cumsum(lengths)))),
        "device": user.astype(np.float32),
    }


def test_features_that_change_together_are_grouped() -> None:
    repeats = Repeats([sample(seed) for seed in range(3)])
    assert repeats.groups() == (("user", "tags", "device"), ("city",))
    assert repeats.factor(frozenset(("item",))) == 1
    assert repeats.factor(frozenset(("user",))) > 4


def test_bytes_are_those_of_the_deduplicated_form() -> None:
    batch = sample(0)
    repeats = Repeats([batch])
    for group in (["user"], ["user", "tags"], ["city", "tags", "item"]):
        first, _ = distinct([batch[name] for name in group], ROWS)
        rows = first.size
        assert repeats.factor(frozenset(group)) == ROWS / rows
        expected = ROWS * INDEX_BYTES
        for column in (take(batch[name], first) for name in group):
            lists = isinstance(column, Jagged)
            expected += column.values.nbytes + rows * INDEX_BYTES if lists else column.nbytes
        assert repeats.grouped_bytes(frozenset(group)) == expected


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_the_choice_never_costs_more_than_plain_or_than_single_groups(seed: int, features: int) -> None:
    random = np.random.default_rng(seed)
    kinds: list[Callable[[], Column]] = [
        lambda: stepping(random, float(random.choice([0.01, 0.1, 1.0]))),
        lambda: np.repeat(np.arange(40), 10),
        # repeats at other rows than any other, so in a group of its own
        lambda: random.integers(0, 40, ROWS),
    ]
    columns = {f"f{i}": kinds[random.integers(len(kinds))]() for i in range(features)}
    repeats = Repeats([columns])
    plain_bytes = repeats.plain_bytes()

    def cost(groups: tuple[tuple[str, ...], ...]) -> int:
        grouped = {name for group in groups for name in group}
        ungrouped = sum(b for name, b in plain_bytes.items() if name not in grouped)
        return ungrouped + sum(repeats.grouped_bytes(frozenset(g)) for g in groups)

    chosen = repeats.groups()
    names = [name for group in chosen for name in group]
    assert len(set(names)) == len(names)
    assert cost(chosen) <= sum(plain_bytes.values())
    singles = tuple((n,) for n in plain_bytes if repeats.grouped_bytes(frozenset((n,))) < plain_bytes[n])
    assert cost(chosen) <= cost(singles)
    # no two groups are left whose union would be cheaper
    for a, b in combinations(chosen, 2):
        rest = tuple(g for g in chosen if g not in (a, b))
        assert cost((*rest, (*a, *b))) >= cost(chosen)


def test_the_choice_is_a_function_of_bytes_alone() -> None:
    """Two features that pay only together, and one that pays alone."""
    bytes_ = {"a": 90, "b": 90, "c": 40, "ab": 95, "ac": 130, "bc": 130, "abc": 190}

    def grouped_bytes(group: Names) -> int:
        return bytes_["".join(sorted(group))] + 20

    plain_bytes = {"a": 100, "b": 100, "c": 100}
    assert choose_groups(plain_bytes, grouped_bytes) == (("a", "b"), ("c",))
    assert choose_groups(plain_bytes, grouped_bytes, min_saved=50) == (("a", "b"),)
    assert choose_groups(plain_bytes, grouped_bytes, min_saved=500) == ()
    assert choose_groups({}, grouped_bytes) == ()


def dedup_factor(rows_per_session: float, unchanged: float) -> float:
    """RecD's estimate of (rows / distinct rows) of a feature in a batch.

    rows_per_session: S, how many of the batch's rows belong to one session. unchanged: d, the chance
    that a value is that of the session's row before. A session brings one new value and then one with
    chance 1 - d in each of its S - 1 other rows: 1 + (S - 1)(1 - d) = S (1 - d (S - 1) / S) in S rows.
    """
    s = rows_per_session
    return 1.0 / (1.0 - unchanged * (s - 1.0) / s)


@pytest.mark.parametrize(("session", "unchanged"), [(5, 0.9), (20, 0.95), (20, 0.5), (1, 0.99), (50, 0.0)])
def test_the_estimate_of_the_factor_meets_what_is_measured(session: int, unchanged: float) -> None:
    random = np.random.default_rng(1)
    rows = 20_000 // session * session
    row_changes = random.random(rows) >= unchanged
    row_changes[::session] = True
    factor = Repeats([{"f": np.cumsum(row_changes)}]).factor(frozenset(("f",)))
    assert factor == pytest.approx(dedup_factor(session, unchanged), rel=0.05)
