"""Places the rows of the chosen options in memories, and fills memory that the solver left unused.

The solver tries only a few shares of a bundle's rows. The remaining memory is filled here, by a single
threshold on accesses per byte over all tables of partly resident bundles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from polyrec.models.tiers.tier_settings import TierCuts
from polyrec.planner.deployment.occupancy import memory_occupancy
from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.rank_accesses import RankedAccesses
from polyrec.planner.deployment.residency import Tables, cuts_within, residency
from polyrec.planner.deployment.solver.choice import Choice
from polyrec.planner.deployment.solver.problem import Problem
from polyrec.planner.placement import MemoryUse, PlacedPath, Placement, TieredBatch

Cuts = tuple[int, ...]


def fill_spare_memory(problem: Problem, choice: Choice) -> Problem:
    """Extends the chosen options into spare memory.

    Returns the problem with these options at the same indexes.
    """
    chosen = [problem.options[i] for i in choice.options]
    served = choice.served.sum(axis=(1, 2))
    used = memory_occupancy(problem, chosen)
    options = list(problem.options)
    for device in problem.lanes:
        partial = [
            k
            for k, o in enumerate(chosen)
            if o.tier is not None and problem.paths[o.path].path.device == device
        ]
        budget = problem.budget[device]
        if not partial or budget is None:
            continue
        # options of one bundle share its rows: the widest stands for all
        widest = {chosen[k].group: k for k in sorted(partial, key=lambda k: chosen[k].device_bytes)}
        spare_bytes = max(budget - used[device].bytes, 0.0)
        cuts = _extend_cuts(
            problem, chosen, {k: _cuts(chosen[k]) for k in widest.values()}, served, spare_bytes
        )
        grown = {k: residency(_tables(problem, chosen[k]), own) for k, own in cuts.items()}
        local_cuts = _extend_local_cuts(
            problem, chosen, cuts, served, sum(own.bytes for own in grown.values())
        )
        for j in partial:
            path, group = chosen[j].path, chosen[j].group
            k = widest[group]
            options[choice.options[j]] = problem.costing(path).option(path, group, grown[k], local_cuts[k])
    return replace(problem, options=tuple(options))


def _extend_local_cuts(
    problem: Problem,
    options: Sequence[Option],
    cuts: Mapping[int, Cuts],
    served: np.ndarray,
    memory_bytes: float,
) -> dict[int, Cuts | None]:
    """Returns, for each option's tables, the rank up to which rows are on disk; None: up to the last.

    memory_bytes: bytes of the rows within cuts, which are in the file on disk too.
    """
    local_cuts: dict[int, Cuts | None] = dict.fromkeys(cuts)
    disk = problem.budget["disk"]
    on_disk = options[next(iter(cuts))].tier == "disk"
    if problem.machine.remote is not None and on_disk and disk is not None:
        left = max(disk - memory_bytes, 0.0)
        for k, down in _extend_cuts(problem, options, cuts, served, left).items():
            whole = tuple(t.size for t in _tables(problem, options[k]).accesses_by_rank)
            local_cuts[k] = None if down == whole else down
    return local_cuts


def _extend_cuts(
    problem: Problem,
    options: Sequence[Option],
    cuts: Mapping[int, Cuts],
    served: np.ndarray,
    spare_bytes: float,
) -> dict[int, Cuts]:
    """Extends cuts by `spare_bytes` bytes in total, by the rows accessed most."""
    joined, owners = _rest(problem, options, cuts, served)
    more = cuts_within(joined, spare_bytes)
    found = {}
    for k, own in cuts.items():
        grown = np.array(own)
        np.add.at(grown, owners[k][1], [more[j] for j in owners[k][0]])
        found[k] = tuple(grown.tolist())
    return found


def _cuts(option: Option) -> Cuts:
    assert option.uncached_cuts is not None
    return option.uncached_cuts


def _tables(problem: Problem, option: Option) -> Tables:
    tables = problem.tables[option.path]
    assert tables is not None
    return tables


def _rest(
    problem: Problem, options: Sequence[Option], cuts: Mapping[int, Cuts], served: np.ndarray
) -> tuple[Tables, dict[int, tuple[list[int], list[int]]]]:
    """Joins the rows beyond cuts of some options into one set of tables, weighted by the traffic's lookups.

    Returns also, for each option, which of the joined tables are its own: (joined index, own index).
    """
    names: list[str] = []
    ranked: list[RankedAccesses] = []
    row_bytes: list[float] = []
    owners: dict[int, tuple[list[int], list[int]]] = {}
    for k, own in cuts.items():
        tables = _tables(problem, options[k])
        weight = tables.lookups * max(served[k], 1e-9) / (tables.accesses or 1.0)
        owners[k] = ([], [])
        for i, cut in enumerate(own):
            if cut < tables.accesses_by_rank[i].size:
                owners[k][0].append(len(names))
                owners[k][1].append(i)
                names.append(f"{k}.{tables.names[i]}")
                ranked.append(tables.accesses_by_rank[i].beyond(cut).scaled(weight))
                row_bytes.append(tables.row_bytes[i])
    return Tables(tuple(names), tuple(ranked), tuple(row_bytes), 1.0), owners


def make_placement(problem: Problem, choice: Choice) -> Placement:
    """Returns the placement of the chosen options."""
    options = [problem.options[i] for i in choice.options]
    memories = []
    for where, use in memory_occupancy(problem, options).items():
        if where == "disk" and not use.bytes:
            continue
        budget = problem.budget.get(where)
        memories.append(
            MemoryUse(
                place=where,
                budget_bytes=math.ceil(use.bytes) if budget is None else int(budget),
                rows_bytes=round(use.rows),
                cache_bytes=math.floor(use.cache),
                fixed_bytes=round(use.fixed),
                working_bytes=round(use.working),
            )
        )
    placed = tuple(_placed(problem, o) for o in options)
    remote = problem.machine.remote if any(p.rows("remote") for p in placed) else None
    return Placement(
        memories=tuple(memories),
        paths=placed,
        remote=remote.store if remote else None,
        popular_first=popular_first_pays(placed),
    )


def popular_first_pays(paths: Sequence[PlacedPath]) -> bool:
    """Returns whether to hold queries with missing rows: only if they come from a remote store.

    With a local disk, the held queries lose as much as hot ones gain (docs/results/popular-first.md).
    """
    return any(p.rows("remote") for p in paths) and all(p.rows("remote") for p in paths if p.rows("disk"))


def _placed(problem: Problem, option: Option) -> PlacedPath:
    p = problem.paths[option.path]
    on_cpu = problem.lanes[p.path.device].device.kind == "cpu"
    near = "host" if on_cpu else "device"
    far = option.tier or ("disk" if on_cpu else "host")
    tables = problem.tables[option.path]
    rows: dict[str, TierCuts] = {}
    if tables is not None:
        whole = tuple(t.size for t in tables.accesses_by_rank)
        cuts, local_cuts = option.cuts or whole, option.local_cuts or whole
        for name, size, cut, down in zip(tables.names, whole, cuts, local_cuts, strict=True):
            # beyond `local_cuts` there is none but where `far` is the disk
            beyond = {"remote": size - down} if size > down else {}
            rows[name] = TierCuts.model_validate({near: cut, far: down - cut} | beyond)
    sizes = {near: round(option.resident)}
    lookups = {near: option.lookups}
    if option.tier is not None:
        found = option.lookups
        if option.cache:
            found = min(option.cached, option.near)
            lookups["cache"] = max(found - option.lookups, 0.0)
        sizes[far] = round(option.next_tier_bytes)
        lookups[far] = max(0.0, option.near - found)
    if option.remote_bytes:
        sizes["remote"] = round(option.remote_bytes)
        lookups["remote"] = max(0.0, 1.0 - option.near)
    below = problem.below[option.path]
    return PlacedPath(
        path=p.path.name,
        bytes=sizes,
        lookups=lookups,
        tables=rows,
        cache_bytes=math.floor(option.cache),
        batches=_batches(problem, option),
        cost_from=below.measured if option.tier is not None else None,
    )


def _batches(problem: Problem, option: Option) -> tuple[TieredBatch, ...]:
    """Returns a single query's batch, which waits for its reads, and the batches of full lanes."""
    timing, below = option.timing, option.timing.below
    if below is None:
        return ()
    alone = max(round(float(np.dot(problem.rows, [c.share for c in problem.classes]))), 1)
    found = []
    for rows, ahead in ((alone, False), (option.batch_rows, below.ahead)):
        reads, memory_s = below.reads(rows), timing.latency.median(rows)
        added = below.median(rows) if ahead else below.waiting(rows)
        found.append(
            TieredBatch(
                rows=rows,
                memory_ms=1e3 * memory_s,
                ms=1e3 * (memory_s + added),
                reads=reads.reads,
                remote=reads.remote,
                ahead=ahead,
            )
        )
    return tuple(found)
