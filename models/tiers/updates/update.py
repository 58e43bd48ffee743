"""Updates of rows by table and stable id: reads them from files, validates and applies them.

A file of updates is safetensors: for each table `TABLE.ids`, int64 [n], and `TABLE.rows`, float32
[n, width]. An update becomes visible atomically: no batch sees a part of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save_file

from polyrec.models.embeddings.store import quantize
from polyrec.models.errors import PolyrecError
from polyrec.models.files import require_regular
from polyrec.models.schema.batch import F32, I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.layout import REMOTE
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.stack import TierStack


class UpdateError(PolyrecError):
    """An update with unknown tables or ids, or invalid values."""


class UpdateNotKept(UpdateError):
    """An update that cannot be stored: the disk is full or failed."""


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """An update of one table.

    ids: int64 [n], stable ids (also of the missing and out-of-vocabulary rows). values: float32 [n, width].
    The last of equal ids counts.
    """

    ids: I64
    values: F32


Update = Mapping[str, TableUpdate]


@dataclass(frozen=True, slots=True)
class Stored:
    """An update of one table in the stored format. ids: int64 [n]; values: uint8 [n, bytes of a row]."""

    ids: I64
    values: Bytes


@dataclass(frozen=True, slots=True)
class Applied:
    """The number of rows of an update, and whether it had been applied before."""

    rows: int
    repeated: bool = False


def apply_update(stack: TierStack, update: Update, key: str = "") -> Applied:
    """Overlays an update on the tiers, and stores it if the stack has `changes`.

    key: the caller's name for it; one that was applied under this name before is not applied again. The tiers
    are written in the background. Raises UpdateError, and then changes nothing; of UpdateNotKept see
    `Changes.apply`.
    """
    packed = {table: _packed(stack, table, given) for table, given in update.items()}
    rows = sum(given.ids.size for given in packed.values())
    if not rows:
        return Applied(0)
    if stack.changes is None:
        overlay(stack, packed)
        return Applied(rows)
    return Applied(rows, not stack.changes.apply(packed, key))


def overlay(stack: TierStack, update: Mapping[str, Stored]) -> None:
    """Overlays validated values on the tiers atomically. update: at least one row."""
    layout, remote = stack.tiers.layout, stack.tiers.remote
    with stack.writing:
        vocabularies = _encoder(stack).vocabularies
        rows = [layout.base[t] + vocabularies[t].rank_of_id[given.ids] for t, given in update.items()]
        stack.update(np.concatenate(rows), np.concatenate([given.values for given in update.values()]))
        if remote is None or not layout.rows[REMOTE]:
            return
        for table, given in update.items():
            if vocabularies[table].specials:
                for place in np.flatnonzero(given.ids == vocabularies[table].oov_id).tolist():
                    remote.fallback[layout.tables.index(table)] = given.values[place]


def _encoder(stack: TierStack) -> Encoder:
    encoder = stack.views.newest.encoder
    if encoder is None:
        raise UpdateError("these tiers were opened without vocabularies: rows cannot be named by id")
    return encoder


def _packed(stack: TierStack, table: str, given: TableUpdate) -> Stored:
    row_format, layout = stack.tiers.row_format, stack.tiers.layout
    encoder = _encoder(stack)
    if table not in layout.base:
        raise UpdateError(f"update: there is no table '{table}'; known: {', '.join(layout.tables)}")
    _check_ids(table, given, encoder.vocabularies[table].rank_of_id, layout.sizes[layout.tables.index(table)])
    values = _values(table, given, row_format.width)
    if not given.ids.size:
        return Stored(given.ids, np.empty((0, row_format.bytes), np.uint8))
    packed = quantize(torch.from_numpy(values), row_format.precision)
    stored = packed.contiguous().view(torch.uint8).numpy().reshape(given.ids.size, row_format.bytes)
    return Stored(given.ids, stored)


def _check_ids(table: str, given: TableUpdate, rank_of_id: I64, stored: int) -> None:
    outside = (given.ids < 0) | (given.ids >= rank_of_id.size)
    if outside.any():
        raise UpdateError(
            f"update: table '{table}' has ids 0 to {rank_of_id.size - 1}, not {given.ids[outside][0]}"
        )
    ranks = rank_of_id[given.ids]
    if ranks.size and ranks.max() >= stored:
        computed = given.ids[ranks >= stored][0]
        raise UpdateError(f"update: the vector of id {computed} of table '{table}' is computed, not stored")


def _values(table: str, given: TableUpdate, width: int) -> F32:
    if given.values.shape != (given.ids.size, width):
        raise UpdateError(
            f"update: table '{table}' wants ({given.ids.size}, {width}) numbers, not {given.values.shape}"
        )
    if not np.isfinite(given.values).all():
        raise UpdateError(f"update: a value of table '{table}' is not finite")
    return given.values


def load_update(file: str | Path, most_bytes: int = sys.maxsize) -> dict[str, TableUpdate]:
    """Reads a file of updates. Raises UpdateError: no such file, invalid, or larger than `most_bytes`."""
    try:
        size = require_regular(Path(file)).st_size
        if size > most_bytes:
            raise UpdateError(f"'{file}' has {size} bytes; all rows that it could name take {most_bytes}")
        with safe_open(file, "np") as tensors:
            arrays = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UpdateError(f"no file of updates '{file}'") from None
    except (OSError, SafetensorError, ValueError, TypeError) as e:
        raise UpdateError(f"'{file}' is not a file of updates: {e}") from None
    return _tables(arrays, f"'{file}'")


def parse_update(content: bytes) -> dict[str, TableUpdate]:
    """Reads the content of a file of updates. Raises UpdateError."""
    try:
        arrays = load(content)
    except (SafetensorError, ValueError, TypeError, KeyError) as e:
        raise UpdateError(f"update: the body is not safetensors: {e}") from None
    return _tables(arrays, "update: the body")


def _tables(arrays: Mapping[str, NDArray[Any]], what: str) -> dict[str, TableUpdate]:
    """The tables of the arrays of a file. Raises UpdateError."""
    tables = {name.rpartition(".")[0] for name in arrays}
    if arrays.keys() != {f"{t}.{part}" for t in tables for part in ("ids", "rows")}:
        raise UpdateError(f"{what} is not a file of updates: it wants TABLE.ids and TABLE.rows, no others")
    out = {}
    for table in sorted(tables):
        ids, values = arrays[f"{table}.ids"], arrays[f"{table}.rows"]
        if ids.dtype != np.int64 or ids.ndim != 1 or values.dtype != np.float32 or values.ndim != 2:
            raise UpdateError(f"{what}: table '{table}' wants int64 ids [n] and float32 rows [n, width]")
        out[table] = TableUpdate(ids, values)
    return out


def save_update(update: Update, file: str | Path) -> None:
    """Writes a file of updates that `load_update` reads."""
    arrays = {f"{t}.ids": np.ascontiguousarray(u.ids, np.int64) for t, u in update.items()}
    arrays |= {f"{t}.rows": np.ascontiguousarray(u.values, np.float32) for t, u in update.items()}
    save_file(arrays, file)
