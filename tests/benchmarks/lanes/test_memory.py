"""Memory as the benchmark adds it up, against the kernel's own sum."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.lanes.memory import process_tree, pss_bytes

SLEEPER = "print('up', flush=True); input()"


def rollup(pid: int) -> int:
    """The kernel's sum for one process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (pss,) = [line.split()[1] for line in lines if line.startswith("Pss:")]
    return 1024 * int(pss)


def test_the_kinds_of_a_tree_add_up_to_the_kernels_sums() -> None:
    command = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        pids = process_tree(os.getpid())
        assert child.pid in pids
        found = pss_bytes(os.getpid())
        assert found["total"] == found["rows"] + found["files"] + found["private"]
        # the heap may grow between both readings
        np.testing.assert_allclose(found["total"], sum(map(rollup, pids)), rtol=0.05)
        child.communicate("\n")


def test_only_rows_count_as_rows_once_touched() -> None:
    size = 8 << 20
    before = pss_bytes(os.getpid())["rows"]
    fd = os.memfd_create("polyrec rows")
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as memory:
        assert pss_bytes(os.getpid())["rows"] == before
        memory[: size // 2] = b"x" * (size // 2)
        assert pss_bytes(os.getpid())["rows"] == before + size // 2
    os.close(fd)
