"""Implements arrays that grow chunk by chunk along their first axis, in memory or in files.

They move to files when memory is too small. `array` memory-maps the files, which are in a temporary folder
that the caller removes.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64


class GrowingArrays:
    """Named arrays, in memory until their total exceeds `memory_bytes`, then in files.

    names: name -> (type, current shape). folder: of the files, None until there are any.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.names: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.folder: Path | None = None
        self._chunks: dict[str, list[NDArray[Any]]] = {}
        self._left = memory_bytes

    def append(self, name: str, chunk: NDArray[Any]) -> None:
        """Appends rows to an array; the first chunk sets its type."""
        rows = self.names[name][1][0] if name in self.names else 0
        self.names[name] = (chunk.dtype, (rows + chunk.shape[0], *chunk.shape[1:]))
        self._chunks.setdefault(name, []).append(chunk)
        self._left -= chunk.nbytes
        if self._left < 0:
            self._spill()

    def _spill(self) -> None:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="polyrec-encoded-"))
        for name, chunks in self._chunks.items():
            with (self.folder / name).open("ab") as f:
                for chunk in chunks:
                    chunk.tofile(f)
        self._chunks.clear()

    def array(self, name: str) -> NDArray[Any]:
        """Returns the whole array and releases its chunks."""
        if self.folder is None:
            # pop one array at a time, so that there are never two copies of all of them
            return np.concatenate(self._chunks.pop(name))
        return self._mapped(name, "r")

    def zeros(self, name: str, size: int) -> I64:
        """Creates an int64 array of zeros [size], in memory or in a file like the others."""
        if self.folder is None:
            return np.zeros(size, np.int64)
        self.names[name] = (np.dtype(np.int64), (size,))
        with (self.folder / name).open("wb") as f:
            f.truncate(size * 8)
        return self._mapped(name, "r+")

    def _mapped(self, name: str, mode: Literal["r", "r+"]) -> NDArray[Any]:
        dtype, shape = self.names[name]
        if self.folder is None or 0 in shape:
            return np.empty(shape, dtype)
        return np.asarray(np.memmap(self.folder / name, dtype, mode, shape=shape))

    def remove(self) -> None:
        """Removes the files."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
