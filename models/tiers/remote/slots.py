"""Computes the Redis Cluster slots of a batch's keys, and parses the map of slots.

A slot is the key's CRC16 modulo 16384 (Redis Cluster specification, "Key distribution model"); of a key with
a `{tag}` only the tag counts, so a prefix with a tag puts all its rows into one slot. CRC16 is linear: each
digit of an id contributes independently of the bytes before it. So four tables of three digits each and one
number per table of rows give the slots of any ids.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.remote.resp import DIGITS, Answer, RespError

SLOTS = 16384
GROUP = 3
"""Digits per table look-up."""

Address = tuple[str, int]
"""Host and port."""


def hash_tag(key: bytes) -> bytes:
    """Returns the part of a key that determines its slot."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else key


def _digits() -> NDArray[np.uint16]:
    """Returns contributions of three digits by position in the id, uint16 [DIGITS / GROUP, 10 ** GROUP]."""
    one = np.array(
        [[crc_hqx(b"%d" % d + bytes(DIGITS - 1 - at), 0) for d in range(10)] for at in range(DIGITS)],
        np.uint16,
    )
    hundreds, tens, units = one[0::GROUP], one[1::GROUP], one[2::GROUP]
    together = hundreds[:, :, None, None] ^ tens[:, None, :, None] ^ units[:, None, None, :]
    return together.reshape(DIGITS // GROUP, 10**GROUP)


class KeySlots:
    """Computes slots of rows. prefixes: of the keys of each table."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        heads = [prefix.encode() for prefix in prefixes]
        tagged = [hash_tag(head + b"0" * DIGITS) != head + b"0" * DIGITS for head in heads]
        self._head = np.array(
            [
                crc_hqx(hash_tag(head), 0) if tag else crc_hqx(head + bytes(DIGITS), 0)
                for head, tag in zip(heads, tagged, strict=True)
            ],
            np.uint16,
        )
        self._untagged = np.where(tagged, 0, 0xFFFF).astype(np.uint16)
        self._digits = _digits()

    def of(self, tables: I64, ids: I64) -> NDArray[np.uint16]:
        """Returns slots, uint16 [n]. tables, ids: int64 [n]."""
        crc = np.zeros(ids.size, np.uint16)
        rest = ids
        for group in self._digits[:0:-1]:
            rest, low = np.divmod(rest, 10**GROUP)
            crc ^= group[low]
        crc ^= self._digits[0][rest]
        crc &= self._untagged[tables]
        crc ^= self._head[tables]
        return crc & np.uint16(SLOTS - 1)


def parse_cluster_slots(answer: Answer, source_host: str) -> list[tuple[int, int, Address]]:
    """Parses a reply to CLUSTER SLOTS as (first slot, last slot, address of the master).

    source_host: of the server that replied, used where the reply names none. Raises RespError.
    """
    found = []
    for part in answer if isinstance(answer, list) else [None]:
        match part:
            case [int(first), int(last), [(bytes() | None) as host, int(port), *_], *_]:
                named = (host or b"?").decode()
                found.append((first, last, (source_host if named == "?" else named, port)))
            case _:
                raise RespError("the store's map of its cluster cannot be read")
    return found
