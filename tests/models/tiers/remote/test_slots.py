"""Slots of whole batches against the specification, key by key."""

from __future__ import annotations

from binascii import crc_hqx

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.remote.resp import RespError, keys
from polyrec.models.tiers.remote.slots import SLOTS, KeySlots, hash_tag, parse_cluster_slots

IDS = st.lists(st.integers(0, 10**12 - 1), min_size=1, max_size=20)
PREFIXES = st.lists(st.text("ab:{}", max_size=8), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("key", "part"),
    [
        (b"{user1000}.following", b"user1000"),
        (b"foo{}{bar}", b"foo{}{bar}"),
        (b"foo{{bar}}zap", b"{bar"),
        (b"foo{bar}{zap}", b"bar"),
        (b"}foo{bar", b"}foo{bar"),
    ],
)
def test_the_tag_of_a_key_is_that_of_the_specification(key: bytes, part: bytes) -> None:
    assert hash_tag(key) == part


@given(PREFIXES, IDS)
def test_slots_of_a_batch_are_those_of_its_keys(prefixes: list[str], given_ids: list[int]) -> None:
    ids = np.array(given_ids)
    tables = np.arange(ids.size) % len(prefixes)
    found = KeySlots(prefixes).of(tables, ids)
    for table, id, slot in zip(tables.tolist(), ids, found.tolist(), strict=True):
        key = keys(prefixes[table], np.array([id]))[0].tobytes()
        assert slot == crc_hqx(hash_tag(key), 0) % SLOTS


def test_a_slot_map_names_the_masters_and_missing_hosts_are_the_source() -> None:
    replica: list[object] = [b"10.0.0.9", 6390, b"id"]
    answer = [
        [0, 5, [b"10.0.0.1", 6379, b"id", []], replica],
        [6, 9, [None, 6380, b"id"]],
        [10, 11, [b"", 1]],
    ]
    assert parse_cluster_slots(answer, "here") == [  # type: ignore[arg-type]
        (0, 5, ("10.0.0.1", 6379)),
        (6, 9, ("here", 6380)),
        (10, 11, ("here", 1)),
    ]


@pytest.mark.parametrize("answer", [None, b"OK", 3, [[0, 5]], [[0, 5, [b"host"]]], [[0, b"5", [b"host", 1]]]])
def test_a_map_that_cannot_be_read_is_an_error(answer: object) -> None:
    with pytest.raises(RespError, match="cannot be read"):
        parse_cluster_slots(answer, "here")  # type: ignore[arg-type]
