"""Updates of rows outlive the generation of what is served that they were given to.

Those of each bundle on each device are kept apart (models/tiers/updates/changes.py). A reload or a
rollback that opens the same version of a bundle again opens its rows with the updates; another version has
rows of its own, and the reply says what stays behind. That is kept while a rollback can bring it back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.updates.changes import Changes

log = logging.getLogger("polyrec.serving")

Key = tuple[str, str]
"""Version of the bundle, which is made of its files' checksums, and device."""


class Updated:
    """The changes of all rows that are served, or may be again."""

    def __init__(self) -> None:
        self._changes: dict[Key, Changes] = {}

    def of(self, bundle: Bundle, device: str, directory: Path) -> Changes:
        """Those of a bundle's rows on a device. directory: where they are kept, if they are new."""
        key = (bundle.manifest.version, device)
        return self._changes.setdefault(key, Changes(directory))

    def keep(self, changes: Iterable[Changes]) -> None:
        """Forgets all others."""
        wanted = list(changes)
        for key, kept in list(self._changes.items()):
            if not any(kept is one for one in wanted):
                del self._changes[key]
                kept.close()


def left_behind(old: Mapping[str, Changes], new: Mapping[str, Changes]) -> dict[str, int]:
    """Rows with new values of each path that served, which what serves now does not have."""
    return {
        path: changes.rows
        for path, changes in old.items()
        if changes.rows and not any(changes is kept for kept in new.values())
    }
