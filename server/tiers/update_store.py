"""Keeps updates of embedding rows across generations of what is served.

Updates are kept for each bundle version and device (models/tiers/updates/changes.py). A reload or a rollback
that opens the same version again opens its rows with the updates; another version has rows of its own, and
the reply reports which updates stay behind. Those are kept while a rollback can bring them back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.updates.changes import Changes

log = logging.getLogger("polyrec.serving")

Key = tuple[str, str]
"""Version of the bundle, which is derived from its files' checksums, and device."""


class UpdateStore:
    """The updates of all rows that are served, or may be again."""

    def __init__(self) -> None:
        self._changes: dict[Key, Changes] = {}

    def changes_of(self, bundle: Bundle, device: str, directory: Path) -> Changes:
        """Returns the updates of a bundle's rows on a device. directory: where new ones are kept."""
        key = (bundle.manifest.version, device)
        return self._changes.setdefault(key, Changes(directory))

    def keep_only(self, changes: Iterable[Changes]) -> None:
        """Closes and removes all other updates."""
        wanted = list(changes)
        for key, kept in list(self._changes.items()):
            if not any(kept is one for one in wanted):
                del self._changes[key]
                kept.close()


def left_behind(old: Mapping[str, Changes], new: Mapping[str, Changes]) -> dict[str, int]:
    """Number of updated rows of each old path that the new generation does not have."""
    return {
        path: changes.rows
        for path, changes in old.items()
        if changes.rows and not any(changes is kept for kept in new.values())
    }
