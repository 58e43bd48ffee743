"""Maps the raw values of one table to ids, and ids to ranks.

Ids are stable: a value's id is its position in the order in which the vocabulary was built, and what clients
of the inference protocol send. Ranks are internal to one generation: row 0 of the stored table has the most
accesses. Two rows are special, `missing` (no value given) and `oov` (a value never seen); they take part in
the popularity order like any other row.

    ids     0 ... size-1   the values      size: missing      size+1: out of vocabulary
    ranks   rank_of_id[id], a permutation of 0 ... rows-1

Ids may be reserved: they have rows but no value yet. A server assigns them to values that updates add while
it serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import repeat
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from polyrec.models.errors import FeatureError
from polyrec.models.schema.batch import I64

SignedInt = TypeVar("SignedInt", bound="np.signedinteger[Any]")
Value = str | int
NO_VALUES: Mapping[Value, int] = MappingProxyType({})
REJECTED = -1
QUOTED_CHARACTERS = 64
"""Maximum characters of an unknown value in a message."""
DICT_LIMIT = 2**16
"""Integer vocabularies up to this size are looked up in a dictionary, larger ones with whole arrays."""
STRING_BYTES, INT_BYTES = 150, 100
"""Least bytes of a value in a lookup dictionary, with entry and rank; strings of 12 bytes took 225."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Values, ids and ranks of one table.

    values: [size] raw values in id order, null for reserved ids; None if the values are the integers 0 ...
    size-1.
    rank_of_id: int64 [rows], a permutation.
    counts: int64 [rows], sampled accesses in rank order, never increasing.
    specials: whether the table has a missing and an out-of-vocabulary row (imported tables do not).
    oov: whether an unknown value gets the out-of-vocabulary row or is refused.
    added: value -> reserved id, for values added while serving.
    """

    table: str
    type: Literal["string", "integer"]
    size: int
    rank_of_id: I64
    counts: I64
    values: pa.Array | None = None
    specials: bool = True
    oov: Literal["row", "refuse"] = "row"
    added: Mapping[Value, int] = field(default_factory=lambda: NO_VALUES)
    _ranks: dict[str | int | None, int] = field(init=False, repr=False, compare=False, default_factory=dict)
    _oov_rank: int = field(init=False, repr=False, compare=False, default=REJECTED)
    _id_of_rank: list[I64] = field(init=False, repr=False, compare=False, default_factory=list)
    _reserved: list[I64] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.rank_of_id.shape != (self.rows,) or self.counts.shape != (self.rows,):
            raise ValueError(f"table '{self.table}': {self.rows} rows, {self.rank_of_id.size} ranks")
        if not np.array_equal(np.sort(self.rank_of_id), np.arange(self.rows)):
            raise ValueError(f"table '{self.table}': rank_of_id is not a permutation")
        if self.specials and self.oov == "row":
            object.__setattr__(self, "_oov_rank", int(self.rank_of_id[self.oov_id]))

    def rank_by_value(self) -> dict[str | int | None, int]:
        """Returns the rank of each raw value; built on first use (a server builds it while loading)."""
        if not self._ranks:
            if self.values is not None or self.size <= DICT_LIMIT:
                values = range(self.size) if self.values is None else self.values.to_pylist()
                self._ranks.update(zip(values, self.rank_of_id[: self.size].tolist(), strict=True))
            self._ranks[None] = self.missing_rank
        return self._ranks

    @property
    def unbuilt_bytes(self) -> int:
        """Minimum bytes of the lookup dictionary, if it is still to be built."""
        is_listed = self.values is not None or self.size <= DICT_LIMIT
        each = STRING_BYTES if self.type == "string" else INT_BYTES
        return each * self.size if is_listed and not self._ranks else 0

    def reordered(self, rank_of_id: I64, counts: I64) -> Vocabulary:
        """Returns the vocabulary with the same values and ids in another order.

        If the lookup dictionary exists, the new one is derived from it by updating only values that moved.
        """
        other = replace(self, rank_of_id=rank_of_id, counts=counts)
        if self._ranks:
            ranks = self._ranks.copy()
            if self.values is not None or self.size <= DICT_LIMIT:
                moved = np.flatnonzero(rank_of_id[: self.size] != self.rank_of_id[: self.size])
                values = (
                    moved.tolist() if self.values is None else self.values.take(pa.array(moved)).to_pylist()
                )
                ranks.update(zip(values, rank_of_id[moved].tolist(), strict=True))
            ranks[None] = other.missing_rank
            other._ranks.update(ranks)
        return other

    def with_added(self, added: Mapping[Value, int]) -> Vocabulary:
        """Returns the vocabulary with other values for reserved ids; everything else is shared, not
        copied.
        """
        other = copy(self)
        object.__setattr__(other, "added", added)
        return other

    def reserved(self) -> I64:
        """Returns the ids without a value in `values`, ascending, including those taken by added values."""
        if not self._reserved:
            nulls = np.empty(0, np.int64)
            if self.values is not None and self.values.null_count:
                nulls = np.flatnonzero(self.values.is_null().to_numpy(zero_copy_only=False))
            # cached, because a feed of new values needs it often
            self._reserved.append(nulls)
        return self._reserved[0]

    def ids_of_values(self, values: Sequence[Value | None]) -> I64:
        """Returns the id of each raw value, int64 [len(values)]; REJECTED for an unknown value."""
        if self.values is None and self.size > DICT_LIMIT:
            inside = (
                self.missing_id if v is None and self.specials else v if _is_id(v, self.size) else REJECTED
                for v in values
            )
            return np.fromiter(inside, np.int64, count=len(values))
        get = self.rank_by_value().get
        ranks = np.fromiter(map(get, values, repeat(REJECTED)), np.int64, count=len(values))
        if not self._id_of_rank:
            # cached, because building it takes time proportional to the table and a feed needs it often
            self._id_of_rank.append(ids_of_ranks(self.rank_of_id))
        ids = np.where(ranks < 0, REJECTED, self._id_of_rank[0][ranks])
        if self.added:
            for place in np.flatnonzero(ids < 0).tolist():
                value = values[place]
                ids[place] = REJECTED if value is None else self.added.get(value, REJECTED)
        return ids

    def value_of_id(self, id: int) -> Value | None:
        """Returns the raw value of an id; None for special rows, reserved ids and ids out of range."""
        if not 0 <= id < self.size:
            return None
        return id if self.values is None else self.values[id].as_py()

    @property
    def rows(self) -> int:
        return self.size + (2 if self.specials else 0)

    @property
    def missing_id(self) -> int:
        return self.size

    @property
    def oov_id(self) -> int:
        return self.size + 1

    @property
    def missing_rank(self) -> int:
        """Rank of the missing row, or -1 if missing values are refused."""
        return int(self.rank_of_id[self.missing_id]) if self.specials else REJECTED

    @property
    def oov_rank(self) -> int:
        """Rank of the out-of-vocabulary row, or -1 if unknown values are refused."""
        return self._oov_rank

    def encode(self, feature: str, values: Sequence[str | int | None]) -> I64:
        """Encodes raw values of a request as ranks, int64 [len(values)]. Raises FeatureError."""
        if self.values is None and self.size > DICT_LIMIT:
            ranks = self._encode_range(values)
        else:
            get = self.rank_by_value().get
            ranks = np.fromiter(map(get, values, repeat(self._oov_rank)), np.int64, count=len(values))
        if self.added:
            unknown = np.flatnonzero(ranks == self._oov_rank)
            self._find_added(ranks, unknown, [values[i] for i in unknown.tolist()])
        if self._oov_rank == REJECTED and ranks.size and ranks.min() < 0:
            row = int(np.argmax(ranks < 0))
            what = (
                "a value is required"
                if values[row] is None
                else f"unknown value {str(values[row])[:QUOTED_CHARACTERS]!r}"
            )
            raise FeatureError(feature, f"{what} (position {row})")
        return ranks

    def _find_added(self, ranks: I64, places: I64, values: Sequence[Value | None]) -> None:
        """Writes the ranks of added values: of `values`, which are at `places` of `ranks`."""
        for place, value in zip(places.tolist(), values, strict=True):
            if value is not None and (id := self.added.get(value)) is not None:
                ranks[place] = self.rank_of_id[id]

    def _encode_range(self, values: Sequence[Any]) -> I64:
        try:
            ids = np.array(values, np.int64)
        except (TypeError, OverflowError):  # a missing value, or one beyond 64 bits
            ids = np.fromiter(
                (self.missing_id if v is None else v if 0 <= v < self.size else -1 for v in values),
                np.int64,
                count=len(values),
            )
            known = (ids >= 0) & (ids < self.size + self.specials)
        else:
            known = (ids >= 0) & (ids < self.size)
        return np.where(known, self.rank_of_id[np.where(known, ids, 0)], self.oov_rank)

    def encode_arrow(self, values: pa.Array) -> I64:
        """Encodes a data column as ranks, int64 [len(values)]; nulls are missing, unknown values oov."""
        missing = values.is_null().to_numpy(zero_copy_only=False)
        if self.values is None:
            ids = pc.fill_null(values.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
            known = (ids >= 0) & (ids < self.size)
        else:
            found = pc.index_in(values.cast(self.values.type), value_set=self.values)
            ids = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
            known = ids >= 0
        ranks = np.where(known, self.rank_of_id[np.where(known, ids, 0)], self.oov_rank)
        ranks = np.where(missing, self.missing_rank, ranks)
        if self.added:
            unknown = np.flatnonzero(ranks == self._oov_rank)
            self._find_added(ranks, unknown, values.take(pa.array(unknown)).to_pylist())
        return ranks

    def ranks_of_ids(self, feature: str, ids: I64) -> I64:
        """Converts ids of the inference protocol to ranks of the same shape.

        Raises FeatureError for an id out of range.
        """
        # viewed as unsigned, a negative id is huge
        if ids.size and ids.view(np.uint64).max() >= self.rows:
            bad = int(np.argmax((ids < 0) | (ids >= self.rows)))
            raise FeatureError(
                feature, f"id {int(ids.flat[bad])} is outside [0, {self.rows}) (position {bad})"
            )
        return self.rank_of_id[ids]


def _is_id(value: Value | None, size: int) -> bool:
    return isinstance(value, int) and 0 <= value < size


def ids_of_ranks(rank_of_id: NDArray[SignedInt]) -> NDArray[SignedInt]:
    """Inverts the permutation: returns the stable id of each rank, [rows], of the same type."""
    ids = np.empty_like(rank_of_id)
    ids[rank_of_id] = np.arange(rank_of_id.size)
    return ids
