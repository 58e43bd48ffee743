"""Holds the files of a folder open, so that they stay what they were, whatever takes their names.

A bundle that is replaced on disk is renamed away and deleted, but what holds its files still reads them. So a
server can map them again (another lane, a rollback) and is not given another model's rows in between.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from models.files import require_regular


class HoldError(Exception):
    """A file cannot be opened, and why. name: of the file, None for the folder itself."""

    def __init__(self, name: str | None, why: OSError) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why


class HeldFiles:
    """Open files by name; closed when the object goes. folder: where they were found, for messages.

    descriptors: inherited ones in a child process, which has them under the same numbers.
    """

    def __init__(self, folder: Path, descriptors: Mapping[str, int]) -> None:
        self.folder = folder
        self.descriptors = dict(descriptors)
        weakref.finalize(self, _close, tuple(self.descriptors.values()))

    def path(self, name: str) -> Path:
        """A path that leads to the held file, in this process."""
        return Path(f"/proc/self/fd/{self.descriptors[name]}")


def hold(folder: Path, names: Sequence[str]) -> HeldFiles:
    """Opens regular files of one folder, all of them the folder's of one moment.

    Raises HoldError.
    """
    try:
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise HoldError(None, e) from None
    descriptors: dict[str, int] = {}
    try:
        for name in names:
            try:
                # asked before it is opened: some devices do something when they are
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
