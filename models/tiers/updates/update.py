"""Validates and applies updates of rows, addressed by table and by stable id or raw value.

An update becomes visible atomically: no batch sees part of it. Values that the table does not know can get
reserved ids (names.py). Values can also be retracted, and are then served as unknown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch

from polyrec.models.embeddings.store import quantize
from polyrec.models.errors import PolyrecError
from polyrec.models.schema.batch import F32, I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.vocabulary import REJECTED, Value, Vocabulary
from polyrec.models.tiers.layout import REMOTE
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.last import last_of_equal
from polyrec.models.tiers.updates.names import NamedId, Names, NoReservedRow

MAX_CHARACTERS = 1024
"""Characters of a new value."""
GREATEST_VALUE = 65504.0
"""Magnitude of a row's value, of fp16's greatest: far beyond trained rows, and products of rows stay finite.
One row of 3e38 would make all requests for its item invalid.
"""
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


class UpdateError(PolyrecError):
    """Raised for an update with unknown tables or ids, or with invalid values."""


class UpdateNotKept(UpdateError):
    """Raised when an update cannot be stored because the disk is full or failed."""


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """An update of one table. If an id repeats, its last values count.

    ids: int64 [n], stable ids, which may include those of the missing and out-of-vocabulary rows.
    values: float32 [n, width].
    names: [n], alternative to `ids`: the values that clients send; None is the missing row.
    retracted: values to serve as unknown from now on; those that the table does not know are ignored.
    """

    ids: I64
    values: F32
    names: Sequence[Value | None] | None = None
    retracted: Sequence[Value] = ()

    @staticmethod
    def retraction(values: Sequence[Value]) -> TableUpdate:
        """Creates an update that only retracts."""
        return TableUpdate(np.empty(0, np.int64), np.empty((0, 0), np.float32), retracted=values)


Update = Mapping[str, TableUpdate]


@dataclass(frozen=True, slots=True)
class StoredTableUpdate:
    """An update of one table in the stored format. ids: int64 [n]; values: uint8 [n, bytes per row].

    If an id repeats, its last values count. Distinct, ascending ids are fastest.
    """

    ids: I64
    values: Bytes


@dataclass(frozen=True, slots=True)
class AddOptions:
    """Permits an update to add values that a table does not know, with reserved ids.

    expires: Unix time in seconds at which the update's values with reserved ids are removed; 0: never.
    """

    expires: float = 0.0


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """The effect of an update.

    rows: rows in the update. added: rows of new values. retracted: number of values retracted.
    repeated: whether the update had been applied before.
    """

    rows: int
    added: int = 0
    retracted: int = 0
    repeated: bool = False


@dataclass(slots=True)
class StoredUpdate:
    """An update in the stored format, with its changes of names.

    rows: by table, at least one row each. added, retracted: number of values.
    """

    rows: dict[str, StoredTableUpdate] = field(default_factory=dict)
    names: dict[str, list[NamedId]] = field(default_factory=dict)
    added: int = 0
    retracted: int = 0


def apply_update(
    stack: TierStack,
    update: Update,
    key: str = "",
    adding: AddOptions | None = None,
    produced: float | None = None,
) -> AppliedUpdate:
    """Overlays an update on the tiers, and stores it if the stack has `changes`.

    key: the caller's name for the update; an update whose key was applied before is ignored.
    adding: permits values that the table does not know; with None they are an error.
    produced: Unix time at which the values were produced, to compute the lag.

    The tiers are written in the background. Raises UpdateError, in which case nothing changes; for
    UpdateNotKept see `Changes.apply`.
    """
    applied, position = install_update(stack, update, key, adding, produced)
    if stack.changes is not None:
        stack.changes.sync(position)
    return applied


def install_update(
    stack: TierStack,
    update: Update,
    key: str = "",
    adding: AddOptions | None = None,
    produced: float | None = None,
) -> tuple[AppliedUpdate, int]:
    """Applies an update without waiting for the log; also returns the log position to `sync`."""
    changes = stack.changes
    given = sum(len(t.ids if t.names is None else t.names) for t in update.values())
    held: AbstractContextManager[object] = nullcontext() if changes is None else changes.held
    # assign ids under the lock, or two updates could assign the same one
    with held:
        if changes is not None:
            if changes.has_applied(key):
                return AppliedUpdate(given, repeated=True), changes.position
            # a reload may have closed the caller's stack, which then lacks values added since
            stack = changes.open_one(stack)
        packed = StoredUpdate()
        for table, one in update.items():
            _pack(stack, packed, table, one, Names() if changes is None else changes.names, adding)
        applied = AppliedUpdate(given, packed.added, packed.retracted)
        if changes is None and packed.names:
            raise UpdateError("update: these tiers keep no updates, so no value can be added")
        if changes is None:
            if packed.rows:
                overlay(stack, packed.rows)
            return applied, 0
        if not packed.rows and not key:
            return applied, changes.position
        position = changes.install(packed, key, None if produced is None else time.time() - produced)
    return applied, position


def overlay(
    stack: TierStack,
    update: Mapping[str, StoredTableUpdate],
    added: Mapping[str, Mapping[Value, int]] | None = None,
) -> None:
    """Overlays validated values on the tiers atomically. update: at least one row.

    added: from now on, the values with reserved ids of all tables; None: unchanged.
    """
    layout, remote = stack.tiers.layout, stack.tiers.remote
    with stack.writing:
        encoder = stack.views.newest.encoder
        vocabularies = _vocabularies(encoder)
        rows = [layout.base[t] + vocabularies[t].rank_of_id.take(given.ids) for t, given in update.items()]
        values = [given.values for given in update.values()]
        stack.update(
            rows[0] if len(rows) == 1 else np.concatenate(rows),
            values[0] if len(rows) == 1 else np.concatenate(values),
            None if added is None or encoder is None else encoder.with_added(added),
        )
        if remote is None or not layout.rows[REMOTE]:
            return
        for table, given in update.items():
            if vocabularies[table].specials:
                for place in np.flatnonzero(given.ids == vocabularies[table].oov_id).tolist():
                    remote.fallback[layout.tables.index(table)] = given.values[place]


def _vocabularies(encoder: Encoder | None) -> Mapping[str, Vocabulary]:
    if encoder is None:
        raise UpdateError("these tiers were opened without vocabularies: rows cannot be addressed by id")
    return encoder.vocabularies


def _pack(
    stack: TierStack,
    packed: StoredUpdate,
    table: str,
    given: TableUpdate,
    names: Names,
    adding: AddOptions | None,
) -> None:
    """Validates the update of one table and adds it to `packed`. Raises UpdateError."""
    row_format, layout = stack.tiers.row_format, stack.tiers.layout
    if table not in layout.base:
        raise UpdateError(f"update: there is no table '{table}'; known: {', '.join(layout.tables)}")
    vocabulary = _vocabularies(stack.views.newest.encoder)[table]
    ids, named = given.ids, list[NamedId]()
    if given.names is not None:
        ids, named = _ids_of_names(vocabulary, given.names, names, adding)
    _check_ids(table, ids, vocabulary.rank_of_id, layout.sizes[layout.tables.index(table)])
    stored = np.empty((0, row_format.bytes), np.uint8)
    if ids.size:
        _check_values(table, ids, given.values, row_format.width)
        # only a row's last values are quantized, logged and kept
        ids, values = last_of_equal(ids, given.values)
        quantized = quantize(torch.from_numpy(values), row_format.precision)
        stored = quantized.contiguous().view(torch.uint8).numpy().reshape(ids.size, row_format.bytes)
    new = {n.value: n.id for n in named if n.id is not None and n.value not in vocabulary.added}
    gone = _retracted_ids(vocabulary, new, given.retracted)
    if gone:
        retracted = np.array(list(gone.values()), np.int64)
        _check_ids(table, retracted, vocabulary.rank_of_id, layout.sizes[layout.tables.index(table)])
        ids = np.concatenate((ids, retracted))
        stored = np.concatenate((stored, np.repeat(_unknown_row(stack, table), len(gone), 0)))
        ids, stored = last_of_equal(ids, stored)
        named += [NamedId(value, None) for value in gone if value in new or value in vocabulary.added]
    if ids.size:
        packed.rows[table] = StoredTableUpdate(ids, stored)
    if named:
        packed.names[table] = named
    packed.added += len(new)
    packed.retracted += len(gone)


def _ids_of_names(
    vocabulary: Vocabulary, given: Sequence[Value | None], names: Names, adding: AddOptions | None
) -> tuple[I64, list[NamedId]]:
    """Returns the ids of values, after assigning reserved ids to new ones. Raises UpdateError."""
    ids = vocabulary.ids_of_values(given)
    unknown = np.flatnonzero(ids < 0).tolist()
    if adding is None:
        if unknown:
            raise UpdateError(
                f"update: table '{vocabulary.table}' has no value {given[unknown[0]]!r}; "
                '"add": true gives new values a reserved row'
            )
        return ids, []
    new: dict[Value, int] = {}
    try:
        named = names.assign_ids(
            vocabulary, dict.fromkeys(_new_value(vocabulary, given[i]) for i in unknown), adding.expires
        )
    except NoReservedRow as e:
        raise UpdateError(str(e)) from None
    new = {name.value: name.id for name in named if name.id is not None}
    for i in unknown:
        value = given[i]
        assert value is not None
        ids[i] = new[value]
    if vocabulary.added:
        known = dict.fromkeys(value for value in given if value is not None)
        named += names.expiry_changes(vocabulary.table, known, adding.expires)
    return ids, named


def _new_value(vocabulary: Vocabulary, value: Value | None) -> Value:
    """Returns the value if it can be added to the table, else raises UpdateError."""
    fits = isinstance(value, str) if vocabulary.type == "string" else type(value) is int
    if value is None or not fits or vocabulary.values is None:
        raise UpdateError(f"update: table '{vocabulary.table}' has no value {value!r}, and cannot have it")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UpdateError(f"update: a new value of table '{vocabulary.table}' has more than 64 bits")
    if isinstance(value, str) and LONE_SURROGATE.search(value):
        raise UpdateError(f"update: a new value of table '{vocabulary.table}' is not Unicode text")
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        raise UpdateError(
            f"update: a new value of table '{vocabulary.table}' has {len(value)} characters, more than "
            f"{MAX_CHARACTERS}"
        )
    return value


def _retracted_ids(
    vocabulary: Vocabulary, new: Mapping[Value, int], values: Sequence[Value]
) -> dict[Value, int]:
    """Returns the ids of those values that the table knows. new: values that the update adds."""
    distinct = list(dict.fromkeys(values))
    if not distinct:
        return {}
    if not vocabulary.specials:
        raise UpdateError(
            f"update: table '{vocabulary.table}' has no row for unknown values, so none can be retracted"
        )
    ids = vocabulary.ids_of_values(distinct)
    known = ((v, new.get(v, id)) for v, id in zip(distinct, ids.tolist(), strict=True))
    return {value: id for value, id in known if id != REJECTED}


def _unknown_row(stack: TierStack, table: str) -> Bytes:
    """Reads the out-of-vocabulary row, uint8 [1, bytes of a row]. Raises UpdateError or UpdateNotKept."""
    row_format, layout = stack.tiers.row_format, stack.tiers.layout
    out = torch.empty((1, row_format.units), dtype=row_format.unit, device=stack.device)
    view = stack.views.enter()
    try:
        # the rank in this view, since rows may have been reordered
        vocabulary = _vocabularies(view.encoder)[table]
        rank = vocabulary.rank_of_id[vocabulary.oov_id]
        if rank >= layout.sizes[layout.tables.index(table)]:
            raise UpdateError(
                f"update: table '{table}' computes the row of unknown values, so none can be retracted"
            )
        row = np.array([layout.base[table] + rank])
        lost = stack.gather(view, row, out, counted=False)
    except OSError as e:
        raise UpdateNotKept(f"update: the row of unknown values cannot be read: {e}") from None
    finally:
        stack.views.leave(view)
    if lost:
        raise UpdateNotKept("update: the remote store lacks the row of unknown values")
    return out.cpu().view(torch.uint8).numpy().reshape(1, -1)


def _check_ids(table: str, ids: I64, rank_of_id: I64, stored: int) -> None:
    if not ids.size:
        return
    if ids.min() < 0 or ids.max() >= rank_of_id.size:
        outside = ids[(ids < 0) | (ids >= rank_of_id.size)][0]
        raise UpdateError(f"update: table '{table}' has ids 0 to {rank_of_id.size - 1}, not {outside}")
    if stored == rank_of_id.size:
        return
    computed = ids[rank_of_id[ids] >= stored]
    if computed.size:
        raise UpdateError(
            f"update: the vector of id {computed[0]} of table '{table}' is computed, not stored"
        )


def _check_values(table: str, ids: I64, values: F32, width: int) -> None:
    if values.shape != (ids.size, width):
        raise UpdateError(f"update: table '{table}' wants ({ids.size}, {width}) numbers, not {values.shape}")
    # not written as `any beyond`, because NaN compares as false
    if not (values.max() <= GREATEST_VALUE and values.min() >= -GREATEST_VALUE):
        raise UpdateError(f"update: a value of table '{table}' is not within {GREATEST_VALUE:,.0f} of 0")
