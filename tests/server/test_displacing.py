"""A set of limited size, whose least recently used member gives way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyrec.server.displacing import DisplacingSet


@given(
    st.integers(1, 4), st.lists(st.tuples(st.sampled_from(["add", "used", "discard"]), st.integers(0, 30)))
)
def test_a_new_member_displaces_the_one_used_longest_ago(most: int, steps: list[tuple[str, int]]) -> None:
    members: DisplacingSet[int] = DisplacingSet(most)
    by_use: list[int] = []
    new = 100
    for step, place in steps:
        known = by_use[place] if place < len(by_use) else -1
        if step == "add":
            new += 1
            expected = by_use.pop(0) if len(by_use) == most else None
            assert members.add(new) == expected
            by_use.append(new)
            continue
        members.used(known) if step == "used" else members.discard(known)
        if known in by_use:
            by_use.remove(known)
            by_use += [known] if step == "used" else []
        assert list(members) == by_use
        assert (known in members) == (known in by_use)
