"""Available memory on machines whose /proc and /sys are written here; work that needs more is refused."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models import memory
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.memory import available_bytes, reports_refused_memory, require_memory
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Slab

MB = 10**6
GIB = 2**30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the files of a machine with 2 GiB available and 1 GiB of swap, and others."""
    monkeypatch.setattr(memory, "SYS", tmp_path / "sys")
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")

    def write(files: dict[str, str]) -> None:
        meminfo = f"MemTotal: 9 kB\nMemAvailable: {2 * 2**20} kB\nSwapFree: {2**20} kB\nHugePages_Total: 0"
        for name, text in ({"proc/meminfo": meminfo} | files).items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")

    return write


def test_without_a_limit_it_is_what_the_machine_has(system: Callable[..., None]) -> None:
    assert available_bytes() is None
    system({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.stat": "anon 5"})
    assert available_bytes() == 3 * GIB
    require_memory(3 * GIB, "rows")


def test_a_limit_of_cgroups_2_holds_without_what_files_take(system: Callable[..., None]) -> None:
    box = "sys/fs/cgroup/box/memory"
    system(
        {
            "proc/self/cgroup": "0::/box/inner",
            f"{box}.max": str(500 * MB),
            f"{box}.current": str(450 * MB),
            f"{box}.stat": f"anon 1\ninactive_file {20 * MB}\nactive_file {10 * MB}\nshmem 7",
            "sys/fs/cgroup/box/inner/memory.max": "max",
            "sys/fs/cgroup/box/inner/memory.current": str(450 * MB),
        }
    )
    assert available_bytes() == 80 * MB + GIB


def test_a_limit_of_cgroups_1_counts_the_groups_below_it(system: Callable[..., None]) -> None:
    box = "sys/fs/cgroup/memory/memory"
    system(
        {
            "proc/self/cgroup": "4:memory:/docker/abc",
            f"{box}.limit_in_bytes": str(500 * MB),
            f"{box}.usage_in_bytes": str(450 * MB),
            f"{box}.stat": f"inactive_file 0\ntotal_inactive_file {20 * MB}\ntotal_active_file {10 * MB}",
        }
    )
    assert available_bytes() == 80 * MB + GIB


def test_work_that_needs_more_is_refused_before_it_begins(
    system: Callable[..., None], bundle_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MIN_CHECKED", 1000)
    encoders = [load_bundle(bundle_dir).encoder for _ in range(2)]
    encoders[0].prepare()
    system({"proc/meminfo": "MemAvailable: 1 kB\nSwapFree: 0 kB"})
    with pytest.raises(RuntimeUnavailable, match="not enough memory: rows in host memory need at least"):
        Slab(RowFormat(200, "fp32"), rows=10, pages=1, page_bytes=4096)
    encoders[0].prepare()  # it needs no more
    with pytest.raises(RuntimeUnavailable, match="the values of the tables need at least"):
        encoders[1].prepare()


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(2**45, dtype=torch.uint8),
        lambda: np.empty(2**60, np.uint8),
        lambda: mmap.mmap(-1, 2**60),
    ],
)
def test_a_refused_allocation_is_one_line(allocate: Callable[[], object]) -> None:
    said = r"^not enough memory to open the plan: [^\n]+$"
    with pytest.raises(RuntimeUnavailable, match=said), reports_refused_memory("open the plan"):
        allocate()


def test_another_error_stays(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a defect"), reports_refused_memory("open the plan"):
        raise RuntimeError("a defect")
    with pytest.raises(FileNotFoundError), reports_refused_memory("open the plan"):
        (tmp_path / "absent").read_bytes()
