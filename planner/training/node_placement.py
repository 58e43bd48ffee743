"""Places the rows of a node: the most popular in memory, the next in slow memory, the rest on disk.

MTrainS (2023) orders tables by the bandwidth that they need. Here the rows of all tables are in a single
order, which applies the same threshold row by row. Each of N nodes owns every N-th row of that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from polyrec.planner.training.description import TrainingDescription, TrainingDisk, TrainingNode
from polyrec.planner.training.popularity import Popularity

BATCHES_AHEAD = 2
"""Batches whose rows are buffered: the current one and the next."""


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """Ranks (over all nodes) up to which rows are in memory, in slow memory and on disk.

    replicated: number of rows that every node has in addition. buffer_bytes: size of the buffers for rows
    that are moved to and from the disk.
    """

    memory: int
    slow: int
    disk: int
    replicated: int
    buffer_bytes: float


def place(
    description: TrainingDescription, node: TrainingNode, nodes: int, popularity: Popularity, hot: int
) -> NodePlacement | None:
    """Places the rows on `nodes` nodes; returns None if they do not fit. hot: number of replicated rows."""
    record = description.record_bytes
    total = popularity.total_rows
    free = node.memory - description.fixed_bytes - hot * record
    if free >= ceil(total / nodes) * record:
        return NodePlacement(total, total, total, hot, 0.0)
    buffer = buffer_bytes(description, nodes, popularity)
    free -= ceil(buffer)
    if free < 0:
        return None
    memory = min(total, free // record * nodes)
    slow = memory
    if node.slow_memory is not None:
        slow = min(total, memory + node.slow_memory.bytes // record * nodes)
    held = slow
    if node.disk is not None:
        held = min(total, slow + node.disk.bytes // record * nodes)
    return NodePlacement(memory, slow, total, hot, buffer) if held == total else None


def buffer_bytes(description: TrainingDescription, nodes: int, popularity: Popularity) -> float:
    """Returns the bytes of a node's buffers for its rows of the batches that are in work."""
    rows = BATCHES_AHEAD * popularity.distinct(description.batch_rows, popularity.rows) / nodes
    return rows * description.record_bytes


def slow_seconds(
    description: TrainingDescription, node: TrainingNode, nodes: int, popularity: Popularity,
    placed: NodePlacement, looked_up_from: int,
) -> tuple[float, float]:  # fmt: skip
    """Returns the seconds per step that slow memory and the disk of one node are busy.

    looked_up_from: rank from which lookups go to owners; rows before it have replicas. Each row is read and
    written once per step.
    """
    batch, record = description.batch_rows, description.record_bytes
    slow_s = disk_s = 0.0
    if node.slow_memory is not None:
        ranks = popularity.between(max(placed.memory, looked_up_from), placed.slow)
        slow_s = 2 * popularity.distinct(batch, ranks) / nodes * record / node.slow_memory.bytes_per_s
    if node.disk is not None:
        ranks = popularity.between(max(placed.slow, looked_up_from), placed.disk)
        disk_s = disk_seconds(node.disk, popularity.distinct(batch, ranks) / nodes, record)
    return slow_s, disk_s


def disk_seconds(disk: TrainingDisk, rows: float, record_bytes: int) -> float:
    """Returns the seconds that a disk needs to read and write back the blocks of some rows."""
    moved = ceil(record_bytes / disk.block_bytes) * disk.block_bytes
    reading = max(rows / disk.reads_per_s, rows * moved / disk.read_bytes_per_s)
    return reading + rows * moved / disk.write_bytes_per_s
