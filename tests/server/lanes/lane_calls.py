"""Asks a lane and waits for what it settles with."""

from __future__ import annotations

import asyncio
import os
import select
from contextlib import suppress
from pathlib import Path

from polyrec.models.schema.batch import Batch
from polyrec.server.lanes.lane import Executed, Lane

LIVENESS_S = 30


def settled_future(lane: Lane, path: str, batch: Batch) -> asyncio.Future[Executed | Exception]:
    """The outcome, as a result in either case. Settling twice fails the test."""
    outcome: asyncio.Future[Executed | Exception] = asyncio.get_running_loop().create_future()
    lane.execute(path, batch, outcome.set_result)
    return outcome


async def executed(lane: Lane, path: str, batch: Batch) -> Executed:
    """Returns the lane's result of a batch; raises the error that it settles with."""
    outcome = await asyncio.wait_for(settled_future(lane, path, batch), LIVENESS_S)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def ends(pidfd: int) -> bool:
    """Whether a process ends within the time that a live system needs."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(LIVENESS_S * 1000))


def open_files() -> int:
    """Returns how many descriptors this process has of workers (their processes) and of shared memory.

    Counts no others: threads of libraries that earlier tests used open and close their own at any time.
    tests/server/lanes/test_child.py compares all descriptors, in a process of its own.
    """
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listed folder's own
            target = os.readlink(f"/proc/self/fd/{fd}")
            found += "polyrec" in target or "pidfd" in target
    return found


def worker_processes() -> list[str]:
    """Processes of lanes that this one has started and that still are."""
    lines: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread or process that has just ended
            for pid in (task / "children").read_text().split():
                lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
    return [line for line in lines if "polyrec.server.lanes.worker" in line and "cpu-1" in line.split("\0")]
