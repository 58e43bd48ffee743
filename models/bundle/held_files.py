"""Holds a folder's files open, so that they can be read again after other files have taken their names.

When a bundle is replaced on disk, its folder is renamed and deleted, but open descriptors still refer to its
files. So a server can map them again (for another lane, or a rollback) and never reads another model's rows.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyrec.models.files import require_regular


class HoldError(Exception):
    """Raised when a file cannot be opened. name: the file, None for the folder itself. why: the system's
    error.
    """

    def __init__(self, name: str | None, why: OSError) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why


class HeldFiles:
    """Open files by name, closed when the object is garbage-collected.

    folder: their origin, for messages.
    descriptors: name -> file descriptor; a child process inherits them under the same numbers.
    """

    def __init__(self, folder: Path, descriptors: Mapping[str, int]) -> None:
        self.folder = folder
        self.descriptors = dict(descriptors)
        weakref.finalize(self, _close, tuple(self.descriptors.values()))

    def path(self, name: str) -> Path:
        """Returns a path that opens the held file in this process."""
        return Path(f"/proc/self/fd/{self.descriptors[name]}")


def hold_files(folder: Path, names: Sequence[str]) -> HeldFiles:
    """Opens regular files, all from the same folder even if it is replaced meanwhile. Raises HoldError."""
    try:
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise HoldError(None, e) from None
    descriptors: dict[str, int] = {}
    try:
        for name in names:
            try:
                # check before opening, because opening some devices has side effects
                require_regular(Path(f"/proc/self/fd/{inside}") / name)
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                descriptors[name] = os.open(name, flags, dir_fd=inside)
            except OSError as e:
                raise HoldError(name, e) from None
    except BaseException:
        _close(tuple(descriptors.values()))
        raise
    finally:
        os.close(inside)
    return HeldFiles(folder, descriptors)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
