"""Updates to log, and what a log holds once it is opened again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.update import StoredTableUpdate, StoredUpdate
from polyrec.models.tiers.updates.update_log import UpdateLog

WIDTH = 12
Rows = dict[int, bytes]


def stored(ids: list[int], value: int) -> StoredUpdate:
    return StoredUpdate(
        {"t": StoredTableUpdate(np.array(ids, np.int64), np.full((len(ids), WIDTH), value, np.uint8))}
    )


def rows_of(changes: Changes) -> Rows:
    """Last values by id."""
    found: Rows = {}
    for record in changes.last_values():
        for rows in record.updates().values():
            found |= {int(i): v.tobytes() for i, v in zip(rows.ids, rows.values, strict=True)}
    return found


def reopened(file: Path) -> Rows:
    changes = Changes(file.parent / "values", UpdateLog(file))
    found = rows_of(changes)
    changes.close(remove=False)
    return found
