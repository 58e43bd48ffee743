"""Reads and writes update files, which are safetensors with these arrays per table.

    TABLE.ids      int64 [n], stable ids; or instead of ids
    TABLE.values   int64 [n], or uint8: a JSON list of n values as clients send them, null for the missing row
    TABLE.rows     float32 [n, width]
    TABLE.retract  int64, or uint8: a JSON list of values to serve as unknown from now on

The header and lists of values have size limits, because a server's requests wait while they are parsed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from polyrec.models.files import MAX_SERVED_BYTES, require_regular
from polyrec.models.schema.vocabulary import Value
from polyrec.models.tiers.updates.update import TableUpdate, Update, UpdateError

MAX_HEADER_BYTES = 2**20
PARTS = ("ids", "values", "rows", "retract")


def load_update(file: str | Path, max_bytes: int = sys.maxsize) -> dict[str, TableUpdate]:
    """Reads an update file. Raises UpdateError if it is absent, invalid, or larger than `max_bytes`."""
    try:
        size = require_regular(Path(file)).st_size
        if size > max_bytes:
            raise UpdateError(f"'{file}' has {size} bytes; all rows that it could name take {max_bytes}")
        with Path(file).open("rb") as content:
            _check_header(content.read(8), f"'{file}'")
        with safe_open(file, "np") as tensors:
            arrays = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UpdateError(f"no file of updates '{file}'") from None
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError) as e:
        raise UpdateError(f"'{file}' is not a file of updates: {e}") from None
    return _tables(arrays, f"'{file}'")


def parse_update(content: bytes) -> dict[str, TableUpdate]:
    """Parses the content of an update file. Raises UpdateError."""
    _check_header(content[:8], "update: the body")
    try:
        arrays = load(content)
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise UpdateError(f"update: the body is not safetensors: {e}") from None
    return _tables(arrays, "update: the body")


def _check_header(length: bytes, what: str) -> None:
    """Checks the header's length, given the first bytes of a file. Raises UpdateError."""
    if int.from_bytes(length, "little") > MAX_HEADER_BYTES:
        raise UpdateError(f"{what} is not a file of updates: a header of more than {MAX_HEADER_BYTES} bytes")


def _tables(arrays: Mapping[str, NDArray[Any]], what: str) -> dict[str, TableUpdate]:
    """Returns the update of each table from a file's arrays. Raises UpdateError."""
    by_table: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        table, _, part = name.rpartition(".")
        if not table or part not in PARTS:
            raise UpdateError(f"{what} is not a file of updates: it has '{name}', not TABLE.{PARTS}")
        by_table.setdefault(table, {})[part] = array
    return {table: _table(table, parts, what) for table, parts in sorted(by_table.items())}


def _table(table: str, parts: Mapping[str, NDArray[Any]], what: str) -> TableUpdate:
    retracted = _list(table, parts["retract"], what) if "retract" in parts else []
    if None in retracted:
        raise UpdateError(f"{what}: table '{table}': the missing row cannot be retracted")
    gone = tuple(value for value in retracted if value is not None)
    if parts.keys() == {"retract"}:
        return TableUpdate.retraction(gone)
    if parts.keys() - {"retract"} not in ({"ids", "rows"}, {"values", "rows"}):
        raise UpdateError(
            f"{what} is not a file of updates: table '{table}' wants {table}.ids or {table}.values, and "
            f"{table}.rows"
        )
    rows = parts["rows"]
    if rows.dtype != np.float32 or rows.ndim != 2:
        raise UpdateError(f"{what}: table '{table}' wants float32 rows [n, width]")
    if "values" in parts:
        names = _list(table, parts["values"], what)
        if len(names) != len(rows):
            raise UpdateError(f"{what}: table '{table}' names {len(names)} rows and gives {len(rows)}")
        return TableUpdate(np.empty(0, np.int64), rows, names, gone)
    ids = parts["ids"]
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise UpdateError(f"{what}: table '{table}' wants int64 ids [n]")
    if len(ids) != len(rows):
        raise UpdateError(f"{what}: table '{table}' names {len(ids)} rows and gives {len(rows)}")
    return TableUpdate(ids, rows, retracted=gone)


def _list(table: str, array: NDArray[Any], what: str) -> list[Value | None]:
    """Returns the values stored in an array. Raises UpdateError."""
    if array.nbytes > MAX_SERVED_BYTES:
        raise UpdateError(
            f"{what}: a list of values of table '{table}' has {array.nbytes} bytes, more than "
            f"{MAX_SERVED_BYTES}; send it in parts"
        )
    if array.ndim == 1 and array.dtype == np.int64:
        return list(array.tolist())
    if array.ndim == 1 and array.dtype == np.uint8:
        try:
            found = json.loads(array.tobytes())
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, list) and all(v is None or type(v) in (str, int) for v in found):
            return found
    raise UpdateError(f"{what}: values of table '{table}' want int64 [n], or uint8 with a JSON list")


def encode_update(update: Update) -> bytes:
    """Returns the content of an update file, which `parse_update` reads."""
    return save(_arrays(update))


def _arrays(update: Update) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for table, given in update.items():
        if given.retracted:
            arrays[f"{table}.retract"] = _json(given.retracted)
        if given.names is not None:
            arrays[f"{table}.values"] = _json(given.names)
        elif given.ids.size or not given.retracted:
            arrays[f"{table}.ids"] = np.ascontiguousarray(given.ids, np.int64)
        else:
            continue
        arrays[f"{table}.rows"] = np.ascontiguousarray(given.values, np.float32)
    return arrays


def _json(values: Sequence[Value | None]) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(list(values)).encode(), np.uint8)
