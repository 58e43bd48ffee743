"""Keeps updates of embedding rows across generations.

Updates are kept per bundle version and device (models/tiers/updates/changes.py). A reload or rollback to the
same version applies its updates to its rows. Another version has its own rows, and the reply reports which
updates are left behind. Those are kept while a rollback can restore them. With a log folder they also survive
the process: each version and device has a file there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.update_log import UpdateLog

log = logging.getLogger("polyrec.serving")

Key = tuple[str, str]
"""Bundle version, which is derived from its files' checksums, and device."""


class UpdateStore:
    """Updates of all bundles that are served or that a rollback may serve again."""

    def __init__(self) -> None:
        self._changes: dict[Key, Changes] = {}
        self.log_folder: Path | None = None
        """Folder of the update logs; None: updates end with the process."""
        self.in_memory = False
        """Whether rows that are all in memory can be updated too, for which their path needs a stack."""

    def changes_of(self, bundle: Bundle, device: str, directory: Path) -> Changes:
        """Returns the updates of a bundle's rows on a device; reads its log the first time.

        directory: folder in which new updates are stored. Raises UpdateLogError.
        """
        key = (bundle.manifest.version, device)
        if key not in self._changes:
            self._changes[key] = self._open(key, directory)
        return self._changes[key]

    def _open(self, key: Key, directory: Path) -> Changes:
        if self.log_folder is None:
            return Changes(directory)
        update_log = UpdateLog(self.log_folder / f"{quote('-'.join(key), safe='')}.updates")
        changes = Changes(directory, update_log)
        if changes.rows:
            log.warning("'%s': %d updated rows are served again", update_log.path, changes.rows)
        return changes

    def keep_only(self, changes: Iterable[Changes]) -> None:
        """Closes and removes all other updates."""
        wanted = list(changes)
        for key, kept in list(self._changes.items()):
            if not any(kept is one for one in wanted):
                del self._changes[key]
                kept.close()

    def close(self) -> None:
        """Closes all updates; keeps their logs."""
        for kept in self._changes.values():
            kept.close(remove=False)
        self._changes = {}


def left_behind(old: Mapping[str, Changes], new: Mapping[str, Changes]) -> dict[str, int]:
    """Returns, for each old path, the number of updated rows that the new generation does not have."""
    return {
        path: changes.rows
        for path, changes in old.items()
        if changes.rows and not any(changes is kept for kept in new.values())
    }
