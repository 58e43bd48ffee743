"""Which slot of a Redis Cluster a row's key lies in, for a whole batch at once, and who serves which slot.

A slot is the key's CRC16 modulo 16384 (Redis Cluster specification, "Key distribution model"); of a key that
has `{tag}` only the tag counts, so rows of a table whose prefix has one share a slot. CRC16 is linear: the
digits of an id change it by what each of them gives in its place, whatever stands before. So four small
tables, of three digits each, and one number for each table of rows give the slots of any ids.
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
"""Digits that are looked up at once."""

Address = tuple[str, int]
"""Host and port."""


def hash_tag(key: bytes) -> bytes:
    """The part of a key that decides its slot."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else key


def _digits() -> NDArray[np.uint16]:
    """uint16 [DIGITS / GROUP, 10 ** GROUP]: what three digits give, by where in the id they stand."""
    one = np.array(
        [[crc_hqx(b"%d" % d + bytes(DIGITS - 1 - at), 0) for d in range(10)] for at in range(DIGITS)],
        np.uint16,
    )
    hundreds, tens, units = one[0::GROUP], one[1::GROUP], one[2::GROUP]
    together = hundreds[:, :, None, None] ^ tens[:, None, :, None] ^ units[:, None, None, :]
    return together.reshape(DIGITS // GROUP, 10**GROUP)


class KeySlots:
    """KeySlots of rows. prefixes: what stands before the id in the keys of each table."""

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
        """tables, ids: int64 [n] -> [n]."""
        given = np.zeros(ids.size, np.uint16)
        rest = ids
        for group in self._digits[:0:-1]:
            rest, low = np.divmod(rest, 10**GROUP)
            given ^= group[low]
        given ^= self._digits[0][rest]
        given &= self._untagged[tables]
        given ^= self._head[tables]
        return given & np.uint16(SLOTS - 1)


def parse_cluster_slots(answer: Answer, asked: str) -> list[tuple[int, int, Address]]:
    """(first slot, last slot, the master that serves them) of an answer to CLUSTER SLOTS.

    asked: the host that answered, which stands for one that a server does not know. Raises RespError.
    """
    found = []
    for part in answer if isinstance(answer, list) else [None]:
        match part:
            case [int(first), int(last), [(bytes() | None) as host, int(port), *_], *_]:
                named = (host or b"?").decode()
                found.append((first, last, (asked if named == "?" else named, port)))
            case _:
                raise RespError("the store's map of its cluster cannot be read")
    return found
