"""Simulates dispatch between many nodes: one stream of queries, a replica choice, simplified nodes.

Every node reports its backlog once every `report_s`, so reports are up to that old.
Policies are comparable because they get the same arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import cycle
from random import Random
from typing import Protocol

from benchmarks.fleet.node_model import INF, NodeKind, NodeModel
from polyrec.models.schema.batch import F64, I64

TICK_S = 0.1
NORMALS = 1 << 16


class Chooser(Protocol):
    """Interface of policies that choose a replica by number."""

    def pick(self, now_s: float) -> int:
        """Returns the replica of a query."""

    def report(self, name: int, reported_s: float, wait_s: float, service_s: float) -> None:
        """Records a replica's report."""

    def record_sent(self, name: int, now_s: float, work_s: float) -> None:
        """Records a query that was sent."""


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """Sums over all nodes. rows_in_time, information: within the deadline; rejected, late: queries."""

    queries: int
    rows: int
    rows_in_time: int
    information: float
    rejected: int
    late: int


def _reports(nodes: int, period_s: float, rng: Random) -> Iterator[tuple[float, int]]:
    """Yields the time and the node of every report, in order; nodes have random phases within the period."""
    order = list(range(nodes))
    rng.shuffle(order)
    reports = [((i + 1) / nodes * period_s, node) for i, node in enumerate(order)]
    round_s = 0.0
    while reports:
        for phase_s, node in reports:
            yield round_s + phase_s, node
        round_s += period_s


def simulate_fleet(
    kinds: Sequence[NodeKind],
    choosers: Sequence[Chooser],
    arrival_s: F64,
    rows: I64,
    budget_s: float,
    report_s: float,
    seed: int,
) -> FleetOutcome:
    """Runs queries through nodes of these kinds.

    choosers: dispatchers, each of which gets a random share of the queries and all reports.
    """
    rng = Random(seed)
    normals = cycle([rng.gauss(0.0, 1.0) for _ in range(NORMALS)])
    nodes = [NodeModel(kind, normals) for kind in kinds]
    n = len(nodes)
    due_reports = _reports(n, report_s, rng)
    reported_s, reporting = next(due_reports)
    tick_at = 0
    counts_ends = any(hasattr(c, "finished") for c in choosers)
    ends: list[tuple[float, int, Chooser]] = []
    one = choosers[0] if len(choosers) == 1 else None
    sequence = 0
    for now_s, own in zip(arrival_s.tolist(), rows.tolist(), strict=True):
        while reported_s <= now_s:
            node = nodes[reporting]
            wait_s = node.wait_s(reported_s)
            for chooser in choosers:
                chooser.report(reporting, reported_s, wait_s, node.kind.service_s)
            reported_s, reporting = next(due_reports)
        # one node after another is ticked, each once every TICK_S
        while (tick_at + 1) * TICK_S / n <= now_s:
            nodes[tick_at % n].tick((tick_at + 1) * TICK_S / n)
            tick_at += 1
        while ends and ends[0][0] <= now_s:
            _, sequence_name, chooser = heappop(ends)[0:3]
            chooser.finished(sequence_name % n)  # type: ignore[attr-defined]
        chooser = one or choosers[int(rng.random() * len(choosers))]
        name = chooser.pick(now_s)
        node = nodes[name]
        end_s = node.offer(now_s, own, now_s + budget_s)
        if end_s < INF:
            # time on the fastest paths: a node with time to spare spends more, which is not load
            chooser.record_sent(name, now_s, own / node.kind.capacity)
            if counts_ends:
                sequence += 1
                heappush(ends, (end_s, sequence * n + name, chooser))
    for node in nodes:
        node.finish()
    return FleetOutcome(
        int(arrival_s.size),
        int(rows.sum()),
        sum(node.rows_in_time for node in nodes),
        sum(node.information for node in nodes),
        sum(node.rejected for node in nodes),
        sum(node.late for node in nodes),
    )
