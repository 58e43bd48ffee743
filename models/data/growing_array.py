"""Arrays that grow chunk by chunk along their first axis: in memory, or in files where memory is too small.

Files are memory-mapped when the arrays are asked for, in a temporary folder that is the taker's to remove.
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
    """Arrays by name, in memory until together they are more than `memory_bytes`.

    names: of each array its type and shape so far. folder: of the files, once there are any.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.names: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.folder: Path | None = None
        self._chunks: dict[str, list[NDArray[Any]]] = {}
        self._left = memory_bytes

    def append(self, name: str, chunk: NDArray[Any]) -> None:
        """Adds rows to an array; the first ones say its type."""
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
        """The whole array; the store gives up what it has of it."""
        if self.folder is None:
            # One array at a time: there are never two copies of everything.
            return np.concatenate(self._chunks.pop(name))
        return self._mapped(name, "r")

    def zeros(self, name: str, size: int) -> I64:
        """int64 [size], kept where the other arrays are."""
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
