"""Allocates one block of host memory for everything that a batch gathers: stored rows and cached pages.

With a single block, a batch is one gather whichever tiers its rows come from. Rows and pages may have any
length: addresses count grains, the greatest common divisor of both lengths, and the gather reads the slab
through a view of overlapping rows, one starting at every grain.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.memory import require_memory
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.row_format import RowFormat

Bytes = NDArray[np.uint8]
ReadRows = Callable[[int, int], Bytes]
"""(first row of the fused weight, count) -> uint8 [count, bytes of a row]."""


class Slab:
    """Host memory: `rows` contiguous rows, then `pages` pages of `page_bytes`.

    `gather` takes addresses (int64, in grains), which `row_addresses` and `page_row_addresses` compute.

    huge_pages: asks the kernel for huge pages, if available.
    view: [addresses, units], the row starting at every address.
    shared: uses shared memory, which other processes can map through `fd`, which they inherit.
    given: such a descriptor, of a slab that another process created.
    Raises RuntimeUnavailable if there is not enough memory for it.
    """

    def __init__(
        self,
        row_format: RowFormat,
        rows: int,
        pages: int,
        page_bytes: int,
        huge_pages: bool = True,
        shared: bool = False,
        given: int | None = None,
    ) -> None:
        self.row_format = row_format
        self.rows, self.pages, self.page_bytes = rows, pages, page_bytes
        self.rows_a_page = page_bytes // row_format.bytes
        if not self.rows_a_page:
            raise ValueError(f"a page of {page_bytes} bytes holds no row of {row_format.bytes}")
        self.grain = math.gcd(row_format.bytes, page_bytes)
        # a multiple of the page size, so that pages are aligned to grains and usable for direct reads
        self._first_page = -(-rows * row_format.bytes // page_bytes) * page_bytes
        # one extra row, so that address 0 exists even if nothing is stored
        size = self._first_page + pages * page_bytes + row_format.bytes
        length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if given is None:
            require_memory(length, "rows in host memory")
        self.fd: int | None = given if given is not None or not shared else _shared_memory(length)
        if self.fd is None:
            # private, because kernels rarely use huge pages for shared memory
            self._memory = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            self._memory = mmap.mmap(self.fd, length)
            weakref.finalize(self, os.close, self.fd)
        self.huge_pages = huge_pages and self._ask_for_huge_pages()
        self.bytes: Bytes = np.frombuffer(self._memory, np.uint8)
        flat = torch.from_numpy(self.bytes).view(row_format.unit)
        step = self.grain // row_format.unit.itemsize
        places = (flat.numel() - row_format.units) // step + 1
        self.view = flat.as_strided((places, row_format.units), (step, 1))
        self.pinned = False

    def _ask_for_huge_pages(self) -> bool:
        try:
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        except (AttributeError, OSError):
            return False
        return True

    def pin(self) -> bool:
        """Pins the slab and maps it for GPUs at the same addresses; returns False if CUDA refuses."""
        if not self.pinned and torch.cuda.is_available():
            cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call, unused-ignore]
            if not int(cuda.cudaHostRegister(self.address, self.nbytes, 0)):
                self.pinned = True
                # tied to the slab, which is freed before its memory: CUDA would keep freed memory locked
                weakref.finalize(self, cuda.cudaHostUnregister, self.address)
            else:
                # clear CUDA's last error, or the next kernel would report it as its own
                with suppress(RuntimeError):
                    torch.zeros(1, device="cuda")
        return self.pinned

    @property
    def nbytes(self) -> int:
        return int(self.bytes.size)

    @property
    def address(self) -> int:
        """Address of the slab in the process's memory."""
        return int(self.bytes.ctypes.data)

    def row_bytes(self) -> Bytes:
        """Returns the stored rows, uint8 [rows, bytes of a row], writable."""
        return self.bytes[: self.rows * self.row_format.bytes].reshape(self.rows, self.row_format.bytes)

    def page(self, slots: I64) -> I64:
        """Returns the byte offset of each page."""
        return self._first_page + slots * self.page_bytes

    def all_pages(self) -> Bytes:
        """Returns all pages, uint8 [pages, page_bytes]."""
        end = self._first_page + self.pages * self.page_bytes
        return self.bytes[self._first_page : end].reshape(self.pages, self.page_bytes)

    def paged_rows(self) -> Bytes:
        """Returns the rows within pages, uint8 [pages, rows per page, bytes per row], writable."""
        shape = (self.pages, self.rows_a_page, self.row_format.bytes)
        strides = (self.page_bytes, self.row_format.bytes, 1)
        return np.lib.stride_tricks.as_strided(self.all_pages(), shape, strides)

    def row_addresses(self, rows: I64) -> I64:
        return rows * (self.row_format.bytes // self.grain)

    def page_row_addresses(self, slots: I64, places: I64) -> I64:
        """Returns the addresses of the rows at `places` within pages."""
        first = self._first_page // self.grain
        return (
            first + slots * (self.page_bytes // self.grain) + places * (self.row_format.bytes // self.grain)
        )

    def gather(self, addresses: I64, out: Tensor) -> Tensor:
        """Gathers rows into out [n, units]. addresses: int64 [n]."""
        return torch.index_select(self.view, 0, torch.from_numpy(addresses), out=out)


def _shared_memory(length: int) -> int:
    """Creates anonymous shared memory, which the kernel frees with its last user; returns its descriptor."""
    fd = os.memfd_create("polyrec rows", os.MFD_CLOEXEC)
    os.ftruncate(fd, length)
    return fd
