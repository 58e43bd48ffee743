"""Accesses files and folders by URL (s3, gs, http, memory, ...), through fsspec.

The scheme selects the file system; fsspec finds it, and its errors say what to install. URLs may be chained,
such as `simplecache::s3://bucket/clicks`, which keeps a local copy of each file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow.fs as pa_fs

from polyrec.models.errors import DataError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

SCHEME = "://"


@dataclass(frozen=True, slots=True, repr=False)
class RemotePath:
    """A file, folder or glob in an fsspec file system.

    Its string form is the URL without query and password, which may contain secrets. Methods raise DataError.
    """

    system: AbstractFileSystem
    path: str

    def __str__(self) -> str:
        parts = urlsplit(self.system.unstrip_protocol(self.path))
        return f"{parts.scheme}{SCHEME}{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def name(self) -> str:
        """Last part of the path."""
        return PurePosixPath(urlsplit(self.path).path).name

    @property
    def stem(self) -> str:
        """`name` without its suffix."""
        return PurePosixPath(self.name).stem

    @property
    def is_glob(self) -> bool:
        """Whether it is a glob pattern. Question marks do not count, since they may begin a query."""
        return any(character in self.path for character in "*[")

    def exists(self) -> bool:
        with self._reported():
            return bool(self.system.exists(self.path))

    def parquet_files(self) -> list[RemotePath]:
        """Returns the file itself, all `*.parquet` files of a folder, or those that match a glob, by name.

        Of a folder, only those that `is_visible` says.
        """
        with self._reported():
            if self.is_glob:
                found = [name for name in self.system.glob(self.path) if self.system.isfile(name)]
            elif self.system.isdir(self.path):
                found = [
                    name
                    for name in self.system.find(self.path)
                    if name.endswith(".parquet") and is_visible(name.removeprefix(self.path).split("/"))
                ]
            else:
                return [self]
        return [RemotePath(self.system, name) for name in sorted(found)]

    def identity(self) -> str:
        """Returns the store's version identifier of the file: an ETag, or size and time."""
        with self._reported():
            return str(self.system.ukey(self.path))

    def arrow_system(self) -> pa_fs.FileSystem:
        """Returns the file system for pyarrow."""
        return pa_fs.PyFileSystem(pa_fs.FSSpecHandler(self.system))

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Converts errors to DataError, because each store raises its own library's errors."""
        try:
            yield
        except Exception as e:
            raise DataError(f"cannot read '{self}': {' '.join(str(e).split()) or type(e).__name__}") from None


DataPath = Path | RemotePath


def is_visible(parts: Sequence[str]) -> bool:
    """Returns whether no part of a path below a folder begins with `_` or `.`, as unfinished files do."""
    return not any(part.startswith(("_", ".")) for part in parts)


def data_path(path: str | Path) -> DataPath:
    """Returns the path of data: a URL if there is a scheme, else a local one.

    Raises DataError: a scheme that fsspec does not know, or whose library is missing.
    """
    if isinstance(path, Path) or SCHEME not in path:
        return Path(path)
    from fsspec.core import url_to_fs

    scheme = path.partition(SCHEME)[0]
    try:
        return RemotePath(*url_to_fs(path))
    except (ImportError, ValueError, OSError) as e:
        raise DataError(f"cannot read {scheme}{SCHEME}...: {' '.join(str(e).split())}") from None
