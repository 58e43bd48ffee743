"""Reads the memory of a process and all its descendants from /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROWS = ("embeddings.safetensors", "memfd:polyrec rows")
"""Mappings of embedding rows: a bundle's file, and the shared host memory of tiers."""


def process_tree(pid: int) -> list[int]:
    """Returns a process and all its descendants; ignores processes that end meanwhile."""
    found = [pid]
    for parent in found:
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def pss_bytes(pid: int) -> dict[str, int]:
    """Returns a process tree's proportional set size in bytes: rows, other files, private memory, total.

    A page shared by n processes counts 1/n in each, so that the sum over the tree counts it once unless other
    processes map it. files: libraries and a bundle's other files.
    """
    sums = {"rows": 0, "files": 0, "private": 0}
    for each in process_tree(pid):
        kind = "private"
        for line in Path(f"/proc/{each}/smaps").read_text().splitlines():
            first, *rest = line.split()
            if not first.endswith(":"):
                name = " ".join(rest[4:])
                kind = "files" if name.startswith("/") else "private"
                if any(rows in name for rows in ROWS):
                    kind = "rows"
            elif first == "Pss:":
                sums[kind] += int(rest[0]) * 1024
    return sums | {"total": sum(sums.values())}
