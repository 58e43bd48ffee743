from __future__ import annotations

import os
from pathlib import Path

import pytest

from polyrec.measure.machine import cpu
from polyrec.models import memory


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's /sys and /proc, to be filled."""
    for module in (cpu, memory):
        monkeypatch.setattr(module, "SYS", tmp_path / "sys")
        monkeypatch.setattr(module, "PROC", tmp_path / "proc")
    return tmp_path


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        file = root / name.replace("__", "/").replace("DOT", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def test_the_cores_are_those_of_the_affinity_mask() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpu.usable_cores() == {min(before)}
        device = cpu.cpu_device(measure=False, unusable={})
        assert device.lanes == 1
    finally:
        os.sched_setaffinity(0, before)


def test_a_quota_of_cgroups_2_holds_for_all_below_it(system: Path) -> None:
    write(system, proc__self__cgroup="0::/box/inner")
    write(
        system,
        sys__fs__cgroup__box__cpuDOTmax="150000 100000",
        sys__fs__cgroup__box__inner__cpuDOTmax="max 100000",
        sys__fs__cgroup__memoryDOTmax="max",
        sys__fs__cgroup__box__memoryDOTmax="1000000",
    )
    assert cpu.cpu_quota() == 1.5
    assert cpu.memory_bytes() == 1_000_000


def test_a_quota_of_cgroups_1_is_read_where_a_container_sees_it(system: Path) -> None:
    write(system, proc__self__cgroup="4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc")
    write(
        system,
        sys__fs__cgroup__cpu__cpuDOTcfs_quota_us="50000",
        sys__fs__cgroup__cpu__cpuDOTcfs_period_us="100000",
        sys__fs__cgroup__memory__memoryDOTlimit_in_bytes="2000000",
    )
    assert cpu.cpu_quota() == 0.5
    assert cpu.memory_bytes() == 2_000_000


def test_no_limit_is_no_limit(system: Path) -> None:
    write(system, proc__self__cgroup="3:cpu:/")
    write(
        system,
        sys__fs__cgroup__cpu__cpuDOTcfs_quota_us="-1",
        sys__fs__cgroup__cpu__cpuDOTcfs_period_us="100000",
    )
    assert cpu.cpu_quota() is None
    assert cpu.memory_bytes() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_quota_below_one_core_still_has_a_lane(system: Path) -> None:
    write(system, proc__self__cgroup="0::/", sys__fs__cgroup__cpuDOTmax="20000 100000")
    device = cpu.cpu_device(measure=False, unusable={})
    assert device.lanes == 1
    assert "quota 0.2" in device.description


def test_caches_are_those_of_data(system: Path) -> None:
    here = "sys__devices__system__cpu__cpu3__cache__index"
    for i, (level, kind, size) in enumerate(
        (
            ("1", "Data", "32K"),
            ("1", "Instruction", "48K"),
            ("2", "Unified", "1024K"),
            ("3", "Unified", "32M"),
        )
    ):
        files = {f"{here}{i}__level": level, f"{here}{i}__type": kind, f"{here}{i}__size": size}
        write(system, **files)
    assert cpu.caches(3) == {"L1d": 32 * 2**10, "L2": 2**20, "L3": 32 * 2**20}


def test_only_nodes_that_have_usable_cores_count(system: Path) -> None:
    nodes = "sys__devices__system__node__node"
    write(system, **{f"{nodes}0__cpulist": "0-3,8", f"{nodes}1__cpulist": "4-7", f"{nodes}2__cpulist": ""})
    assert cpu.numa_nodes({1, 8}) == [0]
    assert cpu.numa_nodes({3, 4}) == [0, 1]


def test_vector_extensions_come_widest_first(system: Path) -> None:
    write(
        system, proc__cpuinfo="processor: 0\nmodel name : A Chip\nflags : fpu avx2 avx512f avx512_vnni sse2"
    )
    assert cpu.vectors() == ("avx512_vnni", "avx512f", "avx2")


def test_a_system_that_tells_nothing_is_no_error(system: Path) -> None:
    assert cpu.cpu_quota() is None
    assert cpu.caches(0) == {}
    assert cpu.numa_nodes({0}) == []
    assert cpu.vectors() == ()
