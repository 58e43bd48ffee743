"""Tells how much memory this process may still allocate, and refuses work that certainly needs more.

The kernel grants allocations beyond what there is, and later kills a process that uses them, without a word
in its log. A server that opens another model would take the one that it serves with it. Its cgroups (version
1 or 2), of which every ancestor may set a lower limit, count as well as the machine. Memory of files is
counted as available, because the kernel can drop it.
"""

from __future__ import annotations

import errno
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyrec.models.allocator import return_freed_memory
from polyrec.models.amounts import size
from polyrec.models.errors import RuntimeUnavailable

SYS = Path("/sys")
PROC = Path("/proc")
MIN_CHECKED = 2**26
"""Bytes below which nothing is checked."""
REFUSED = ("cannot allocate memory", "can't allocate memory", "out of memory", "bad_alloc")
"""How libraries report that an allocation was refused, in lower case."""


def require_memory(needed: int, what: str) -> None:
    """Raises RuntimeUnavailable if `needed` bytes cannot be allocated. what: what needs them."""
    if needed < MIN_CHECKED:
        return
    available = available_bytes()
    if available is not None and needed > available:
        gc.collect()
        return_freed_memory()  # what this process has freed may be enough
        available = available_bytes()
    if available is not None and needed > available:
        raise RuntimeUnavailable(
            f"not enough memory: {what} need at least {size(needed)}, and {size(max(available, 0))} are free"
        )


def available_bytes() -> int | None:
    """Returns the bytes that can still be allocated, with swap; None if the system does not tell."""
    machine = dict(line.split()[:2] for line in lines(PROC / "meminfo"))
    if not {"MemAvailable:", "SwapFree:"} <= machine.keys():
        return None
    swap = 1024 * int(machine["SwapFree:"])
    free = [1024 * int(machine["MemAvailable:"]) + swap]
    for folder in cgroups("memory"):
        limit, used = (
            next((n for name in names if (n := number(folder / name)) is not None), None)
            for names in (
                ("memory.max", "memory.limit_in_bytes"),
                ("memory.current", "memory.usage_in_bytes"),
            )
        )
        if limit is not None and used is not None:
            free.append(limit - used + _file_bytes(folder) + swap)
    return min(free)


def _file_bytes(folder: Path) -> int:
    """Returns the bytes of files that the kernel caches for a cgroup, with those below it."""
    found = dict(line.split() for line in lines(folder / "memory.stat"))
    prefix = "total_" if "total_inactive_file" in found else ""  # version 1: without it, of the folder alone
    return sum(int(found.get(f"{prefix}{name}", 0)) for name in ("inactive_file", "active_file"))


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that an allocation was refused."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in REFUSED)


@contextmanager
def reports_refused_memory(what: str) -> Iterator[None]:
    """Raises RuntimeUnavailable in place of an error that says that an allocation was refused.

    what: what the memory was for, a verb and its object.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as e:
        if not is_out_of_memory(e):
            raise
        reason = (str(e).splitlines() or [""])[0]
        raise RuntimeUnavailable(f"not enough memory to {what}: {reason}") from None


def cgroups(controller: str) -> list[Path]:
    """Returns the folders of this process's cgroup and its ancestors, for one controller, version 2 and 1."""
    roots: list[tuple[Path, str]] = []
    for line in lines(PROC / "self/cgroup"):
        version, names, path = line.split(":", 2)
        if version == "0":
            roots += [(SYS / "fs/cgroup", path), (SYS / "fs/cgroup/unified", path)]
        elif controller in names.split(","):
            roots.append((SYS / "fs/cgroup" / controller, path))
    folders: list[Path] = []
    for root, path in roots:
        here = root / path.lstrip("/")
        # inside a container the path is the host's, and the limits are at the visible root
        folders += [p for p in (here, *here.parents) if p == root or root in p.parents]
    return [p for p in dict.fromkeys(folders) if p.is_dir()]


def lines(file: Path) -> list[str]:
    """Returns the lines of a file of the system; none if there is no such file."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def words(file: Path) -> list[str]:
    """Returns the words of such a file."""
    return " ".join(lines(file)).split()


def number(file: Path) -> int | None:
    """Returns the number that such a file begins with; None if it begins with none."""
    found = words(file)
    return int(found[0]) if found and found[0].lstrip("-").isdigit() else None
