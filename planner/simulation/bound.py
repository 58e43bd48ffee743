"""Computes the clairvoyant bound: the most information within deadlines that any policy can reach on a trace.

All arrivals are known beforehand. A linear program assigns the rows that arrive in each time bin to paths and
bins. It relaxes integrality of batches, indivisibility of queries, times within a bin and execution noise (it
uses medians). It keeps these constraints, which hold for every policy:

- a device has a number of lanes, each with the seconds of a bin;
- rows execute after they arrive and before their deadline, rounded to bins;
- batches have a fixed cost: a row costs at least median(n) / n in a batch of n rows. A batch begins after its
  last row arrived and ends before the deadline of its first, so all its rows arrived within (longest budget -
  median(n)). So n is limited by the rows in any such window near the bin, and by the maximum batch or the
  largest query, which executes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, vstack

from polyrec.models.schema.batch import F64, I64
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.latency.latency_table import LatencyTable
from polyrec.planner.simulation.trace import Trace

BINS_A_BUDGET = 4
CLOSE = 1e-9
SIZES = 32
"""Number of batch sizes tried for a row's minimum cost; sizes between them are rounded up."""


@dataclass(frozen=True, slots=True)
class ClairvoyantBound:
    """An upper bound for every policy on one trace.

    information: maximum information within deadlines.
    rows: rows answered in that solution.
    bin_s: width of the bins.
    by_bin: float64 [bins], information by arrival bin.
    """

    information: float
    rows: float
    bin_s: float
    by_bin: F64

    def between(self, since_s: float, until_s: float) -> float:
        """Returns the information of arrivals in a span of whole bins; only roughly a bound itself."""
        return float(self.by_bin[round(since_s / self.bin_s) : round(until_s / self.bin_s)].sum())


def bound(trace: Trace, lanes: Sequence[LaneSpec], bin_s: float | None = None) -> ClairvoyantBound:
    """Computes the bound for one model's trace. bin_s: width of the bins; None: a part of the budget."""
    return joint_bound([trace], Counter(lane.device for lane in lanes), bin_s)


def joint_bound(
    traces: Sequence[Trace],
    lanes: Mapping[str, float],
    bin_s: float | None = None,
    guaranteed: Sequence[float] = (),
) -> ClairvoyantBound:
    """Computes the bound on the sum of several models' weighted information on one machine.

    lanes: by device, maximum number of concurrent batches of all models.
    guaranteed: share of all lanes per model. Each model then gets at least the information of its own bound
        on that share with its most efficient path. Empty if nothing is guaranteed.
    """
    if not all(trace.arrival_s.size for trace in traces):
        return ClairvoyantBound(0.0, 0.0, 1.0, np.zeros(0))
    width = min(float(t.budgets.min()) for t in traces) / BINS_A_BUDGET if bin_s is None else bin_s
    bins = max(int(((t.arrival_s + t.budgets) / width).max()) for t in traces) + 1
    devices = list(lanes)
    parts = [_assignments(trace, devices, bins, width) for trace in traces]
    sizes = np.cumsum([0, *(part.group_rows.size for part in parts)])
    group = np.concatenate([part.group + at for part, at in zip(parts, sizes, strict=False)])
    first = np.concatenate([part.first for part in parts])
    place, cost, value = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("place", "cost", "value")
    )
    if not group.size:
        return ClairvoyantBound(0.0, 0.0, width, np.zeros(bins))
    columns = np.arange(group.size)
    matrix = coo_array(
        (
            np.concatenate([cost, np.ones(group.size)]),
            (np.concatenate([place, len(devices) * bins + group]), np.concatenate([columns, columns])),
        ),
        shape=(len(devices) * bins + sizes[-1], group.size),
    ).tocsr()
    group_rows = np.concatenate([part.group_rows for part in parts])
    count = [lanes[device] for device in devices]
    limit = np.concatenate([np.repeat(np.asarray(count, np.float64) * width, bins), group_rows])
    for share, trace, at, end in zip(guaranteed, traces, sizes, sizes[1:], strict=False):
        alone = joint_bound([_efficient(trace)], {device: share * n for device, n in lanes.items()}, width)
        own = np.where((group >= at) & (group < end), -value, 0.0)
        matrix = vstack([matrix, own])
        limit = np.append(limit, -alone.information * (1 - CLOSE))
    solved = linprog(-value, A_ub=matrix, b_ub=limit, bounds=(0, None), method="highs")
    if solved.status != 0:
        raise RuntimeError(f"the bound's linear program was not solved: {solved.message}")
    by_bin: F64 = np.bincount(first[group], weights=value * solved.x, minlength=bins).astype(np.float64)
    return ClairvoyantBound(float(-solved.fun), float(solved.x.sum()), width, by_bin)


def _efficient(trace: Trace) -> Trace:
    """Returns the trace with only the path of each device that has the most information per second."""
    best: dict[str, PathSpec] = {}
    rows = trace.limits.max_batch_rows

    def rate(path: PathSpec) -> float:
        return path.quality / path.latency.median(rows)

    for path in trace.paths:
        if path.device not in best or rate(path) > rate(best[path.device]):
            best[path.device] = path
    return replace(trace, paths=tuple(best.values()))


@dataclass(frozen=True, slots=True)
class _Assignments:
    """The program's variables for one trace: rows of a group that execute on a path in a bin.

    group: index of the variable's group.
    place: device * bins + bin.
    cost, value: seconds and weighted value per row.
    first, group_rows: arrival bin and rows of each group.
    """

    group: I64
    place: I64
    cost: F64
    value: F64
    first: I64
    group_rows: F64


def _assignments(trace: Trace, devices: Sequence[str], bins: int, width: float) -> _Assignments:
    arrival_s, rows, budgets, limits = trace.arrival_s, trace.rows, trace.budgets, trace.limits
    first = (arrival_s / width).astype(np.int64)
    last = ((arrival_s + budgets) / width).astype(np.int64)
    # queries with the same arrival bin and deadline bin form a group, as their rows cost the same
    groups, group_of = np.unique(np.stack([first, last]), axis=1, return_inverse=True)
    group_rows = np.bincount(group_of.ravel(), weights=rows).astype(np.float64)
    biggest = min(int(rows.sum()), limits.max_batch_rows)
    # a query larger than the limit executes alone
    large = np.flatnonzero(rows > limits.max_batch_rows)
    longest_s = float(budgets.max())
    none = np.zeros(0, np.int64)
    found: list[tuple[I64, I64, F64, F64]] = [(none, none, np.zeros(0), np.zeros(0))]
    for path in trace.paths:
        device = devices.index(path.device)
        cost = _row_costs(LatencyTable(path.latency, biggest), arrival_s, rows, longest_s, groups[0], width)
        if large.size:
            alone_s = np.array([path.latency.median(int(n)) for n in rows[large]])
            each = np.where(alone_s <= budgets[large], alone_s / rows[large], np.inf)
            np.minimum.at(cost, group_of.ravel()[large], each)
        # rows that exceed the longest budget even alone cannot use this path
        usable = np.isfinite(cost)
        for offset in range(int((groups[1] - groups[0]).max()) + 1):
            at = groups[0] + offset
            chosen = np.flatnonzero(usable & (at <= groups[1]))
            value = np.full(chosen.size, path.quality * trace.weight)
            found.append((chosen, device * bins + at[chosen], cost[chosen], value))
    group, place, cost, value = (np.concatenate([f[k] for f in found]) for k in range(4))
    return _Assignments(group, place, cost, value, groups[0], group_rows)


def _row_costs(
    latency: LatencyTable, arrival_s: F64, rows: I64, longest_s: float, bins: I64, width: float
) -> F64:
    """Returns the minimum seconds of a row that arrives in each of `bins`; infinity if it must be late."""
    sizes = np.unique(np.geomspace(1, latency.rows, SIZES).astype(np.int64))
    median = np.asarray(latency.median)
    least = np.full(bins.size, np.inf)
    total = np.concatenate([[0], np.cumsum(rows)])
    nearest = np.minimum.accumulate(median[1:] / np.arange(1, latency.rows + 1))
    lower = 0
    for size in sizes:
        # a batch of more than `lower` rows takes at least this long, so its rows arrived within that window
        window = longest_s - median[lower + 1]
        if window < 0:
            break
        come = total[np.searchsorted(arrival_s, arrival_s + window, side="right")] - total[:-1]
        possible = _may_overlap(arrival_s, come > lower, window, bins, width)
        least[possible] = nearest[min(size, int(come.max())) - 1]
        lower = int(size)
    return least


def _may_overlap(
    arrival_s: F64, start: NDArray[np.bool_], window: float, bins: I64, width: float
) -> NDArray[np.bool_]:
    """Returns for each bin whether a marked window [arrival, arrival + window] may overlap it."""
    marked = arrival_s[start]
    if not marked.size:
        return np.zeros(bins.size, np.bool_)
    lowest, highest = bins * width - window, (bins + 1) * width
    return np.searchsorted(marked, lowest, side="left") < np.searchsorted(marked, highest, side="right")
