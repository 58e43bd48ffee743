from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from polyrec.models.tiers.disk.row_writer import MAPPED_ROWS, ROWS, RowWriter

ROW = 256


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("count", [0, 1, ROWS, 3 * ROWS + 5, MAPPED_ROWS // 2 + 1])
def test_rows_are_written_to_their_places_and_nothing_else(tmp_path: Path, mapped: bool, count: int) -> None:
    random = np.random.default_rng(count)
    wanted = random.integers(0, 256, (MAPPED_ROWS, ROW), np.uint8)
    (tmp_path / "rows").write_bytes(wanted.tobytes())
    file = os.open(tmp_path / "rows", os.O_RDWR)
    writer = RowWriter(file, ROW, mapped)
    for _ in range(3):
        rows = random.permutation(MAPPED_ROWS)[:count]
        wanted[rows] = values = random.integers(0, 256, (count, ROW), np.uint8)
        writer.write(rows * ROW, values)
        assert (tmp_path / "rows").read_bytes() == wanted.tobytes()
    writer.close()
    os.close(file)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_write_that_fails_raises_and_the_next_one_succeeds(tmp_path: Path, mapped: bool) -> None:
    (tmp_path / "rows").write_bytes(bytes(4 * ROW))
    file = os.open(tmp_path / "rows", os.O_RDWR)
    writer = RowWriter(file, ROW, mapped)
    values = np.ones((2, ROW), np.uint8)
    with pytest.raises(OSError, match="Invalid argument"):
        writer.write(np.array([0, -ROW]), values)
    writer.write(np.array([0, 2 * ROW]), values)
    assert (tmp_path / "rows").read_bytes() == (bytes([1]) * ROW + bytes(ROW)) * 2
    writer.close()
    os.close(file)


def mapped_kib(path: Path) -> int:
    """Memory of this process in mappings of a file."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if line.endswith(f" {path}")]
    sizes = [next(line for line in lines[start:] if line.startswith("Rss:")) for start in starts]
    return sum(int(size.split()[1]) for size in sizes)


def may_copy() -> bool:
    """Whether the kernel lets this process copy a byte of its own memory."""
    there = ctypes.create_string_buffer(1)
    part = (ctypes.c_size_t * 2)(ctypes.addressof(there), 1)
    copy = ctypes.CDLL(None).process_vm_writev
    return bool(copy(os.getpid(), part, ctypes.c_ulong(1), part, ctypes.c_ulong(1), ctypes.c_ulong(0)) == 1)


def require_mapping(writer: RowWriter, path: Path) -> None:
    """Writes the first row, which is copied into a mapping wherever that is allowed; else skips the test."""
    writer.write(np.array([0]), np.ones((1, ROW), np.uint8))
    if not may_copy():
        pytest.skip("this kernel or container forbids process_vm_writev")
    assert mapped_kib(path)


def test_a_row_beyond_the_end_of_a_file_that_was_cut_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """A store to the mapping would end the process."""
    (tmp_path / "rows").write_bytes(bytes(64 * ROW))
    file = os.open(tmp_path / "rows", os.O_RDWR)
    writer = RowWriter(file, ROW)
    require_mapping(writer, tmp_path / "rows")
    os.truncate(tmp_path / "rows", 8 * ROW)
    with pytest.raises(OSError, match="could not be written"):
        writer.write(np.array([0, 32 * ROW]), np.ones((2, ROW), np.uint8))
    writer.close()
    os.close(file)


def test_a_file_that_cannot_be_mapped_is_written_all_the_same(tmp_path: Path) -> None:
    """A file of no bytes; a kernel or container may forbid it too."""
    file = os.open(tmp_path / "rows", os.O_RDWR | os.O_CREAT)
    writer = RowWriter(file, ROW)
    writer.write(np.array([ROW]), np.ones((1, ROW), np.uint8))
    assert (tmp_path / "rows").read_bytes() == bytes(ROW) + bytes([1]) * ROW
    writer.close()
    os.close(file)


def test_written_pages_are_let_go_without_another_descriptor(tmp_path: Path) -> None:
    count = MAPPED_ROWS
    wanted = np.random.default_rng(0).integers(0, 256, (count, ROW), np.uint8)
    (tmp_path / "rows").write_bytes(bytes(count * ROW))
    file = os.open(tmp_path / "rows", os.O_RDWR)
    writer = RowWriter(file, ROW)
    require_mapping(writer, tmp_path / "rows")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        writer.write(np.arange(count) * ROW, wanted)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert mapped_kib(tmp_path / "rows") == 0
    assert (tmp_path / "rows").read_bytes() == wanted.tobytes()
    writer.close()
    os.close(file)
