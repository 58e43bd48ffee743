"""Implements hash tables with whole-array operations, to find cached rows and remember evicted ones.

Both consist of arrays of buckets of `WAYS` entries, so that finding a batch's rows takes one comparison of
arrays. Their size depends on the cache alone, not on the number of rows in the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64

NOWHERE = -1
WAYS = 8
"""Entries of a bucket: with 32-bit keys half a cache line."""
LOAD = 0.625
"""Maximum share of the entries in use. A key has two buckets; at this load 1 in 50,000 finds both full."""
INDEX_BYTES = (4 + 4) / LOAD + 4
"""Bytes for each slot: key and slot of the entries, and each slot's entry."""
_MULTIPLIERS: I64 = np.array([[0x9E3779B1], [0x85EBCA77]])
_LOW = 0xFFFFFFFF


class RowIndex:
    """Finds the slots of keys. Not thread-safe.

    keys: keys are 0 ... keys - 1. max_keys: maximum number of keys in the index. slots: slots are
    0 ... slots - 1.
    """

    def __init__(self, keys: int, max_keys: int, slots: int) -> None:
        number = np.int32 if keys < 2**31 else np.int64
        self._buckets = max(-(-max_keys // int(WAYS * LOAD)), 1)
        self._key: NDArray[Any] = np.full((self._buckets, WAYS), NOWHERE, number)
        self._slot = np.zeros(self._buckets * WAYS, np.int32)
        self._entry = np.full(slots, NOWHERE, np.int32)

    @property
    def nbytes(self) -> int:
        return int(self._key.nbytes + self._slot.nbytes + self._entry.nbytes)

    def find(self, keys: I64) -> I64:
        """Returns the slot of each key, int64 [n], or NOWHERE. Keys may repeat."""
        slots = np.full(keys.size, NOWHERE, np.int64)
        # both buckets at once, because for a query's keys the number of array operations dominates
        buckets = _buckets(keys, self._buckets).ravel()
        found = self._key.take(buckets, axis=0).reshape(2, keys.size, WAYS) == keys[:, None]
        same = np.flatnonzero(found)
        at = same // WAYS
        # a key has at most one entry
        slots[at % keys.size] = self._slot.take(buckets.take(at) * WAYS + same % WAYS)
        return slots

    def key(self, slots: I64) -> I64:
        """Returns the key of each slot, int64 [n], or NOWHERE."""
        entry = self._entry.take(slots)
        return np.where(entry == NOWHERE, NOWHERE, self._key.ravel().take(entry)).astype(np.int64)

    def put(self, keys: I64, slots: I64) -> NDArray[np.bool_]:
        """Inserts keys with their slots; returns which were stored, bool [n].

        A key goes to the emptier of its two buckets. keys: int64 [n], distinct and not in the index.
        slots: int64 [n], without keys.
        """
        stored = np.zeros(keys.size, bool)
        left = np.arange(keys.size)
        both = _buckets(keys, self._buckets)
        in_first, in_second = (self._key.take(both, axis=0) == NOWHERE).sum(axis=2)
        choice = (in_second > in_first).astype(np.int64)
        for tried in (0, 1):
            if not left.size:
                break
            bucket = both[choice[left] ^ tried, left]
            order = np.argsort(bucket, kind="stable")
            left, bucket = left[order], bucket[order]
            # within a bucket, the first key gets the first free entry, the second the second
            free = self._key.take(bucket, axis=0) == NOWHERE
            turn = _turns(bucket)
            way = (free.cumsum(axis=1) == turn[:, None] + 1).argmax(axis=1)
            fits = turn < free.sum(axis=1)
            entry = bucket[fits] * WAYS + way[fits]
            now, left = left[fits], left[~fits]
            self._key.reshape(-1)[entry] = keys[now]
            self._slot[entry] = slots[now]
            self._entry[slots[now]] = entry
            stored[now] = True
        return stored

    def remove(self, slots: I64) -> None:
        """Removes the keys of slots; slots without one are ignored."""
        entry = self._entry[slots]
        self._key.reshape(-1)[entry[entry != NOWHERE]] = NOWHERE
        self._entry[slots] = NOWHERE


class RecentRows:
    """Remembers about the latest `size` rows added; each bucket forgets its oldest."""

    def __init__(self, keys: int, size: int) -> None:
        number = np.int32 if keys < 2**31 else np.int64
        self._buckets = max(-(-size // WAYS), 1)
        self._key: NDArray[Any] = np.full((self._buckets, WAYS), NOWHERE, number)
        self._next = np.zeros(self._buckets, np.uint8)

    @property
    def nbytes(self) -> int:
        return int(self._key.nbytes + self._next.nbytes)

    @property
    def size(self) -> int:
        """Maximum number of remembered rows."""
        return int(self._key.size)

    def has(self, keys: I64) -> NDArray[np.bool_]:
        """Returns which keys are remembered, bool [n]."""
        bucket = _buckets(keys, self._buckets, 1)[0]
        known: NDArray[np.bool_] = (self._key.take(bucket, axis=0) == keys[:, None]).any(axis=1)
        return known

    def add(self, keys: I64) -> None:
        """Remembers keys, int64 [n], distinct."""
        bucket = _buckets(keys, self._buckets, 1)[0]
        order = np.argsort(bucket, kind="stable")
        keys, bucket = keys[order], bucket[order]
        way = (self._next[bucket] + _turns(bucket)) % WAYS
        self._key[bucket, way] = keys
        # the last key of each bucket has the highest turn
        self._next[bucket] = (way + 1) % WAYS


def _buckets(keys: I64, buckets: int, choices: int = 2) -> I64:
    """Returns the buckets of each key, int64 [choices, n]."""
    # multiplicative hashing onto any number of buckets
    mixed: I64 = (keys * _MULTIPLIERS[:choices]) & _LOW
    return (mixed * buckets) >> 32


def _turns(ascending: I64) -> I64:
    """Returns the index of each value within its run of equal values, from 0."""
    index = np.arange(ascending.size)
    begins = np.ones(ascending.size, bool)
    np.not_equal(ascending[1:], ascending[:-1], out=begins[1:])
    return index - np.maximum.accumulate(np.where(begins, index, 0))
