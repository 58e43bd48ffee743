"""Formats a plan as text: its paths, devices, memory, bottlenecks and the gain of upgrades.

Everything printed is in the plan file.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyrec.models.amounts import percent, rate, size
from polyrec.models.text_table import aligned
from polyrec.planner.expected import Bottleneck, Expected
from polyrec.planner.placement import Placement
from polyrec.planner.plan import Plan
from polyrec.planner.traffic import Sizes, Traffic

MIN_GAIN = 0.5
"""Minimum information per second worth a line."""


def page(plan: Plan) -> list[str]:
    """Returns the lines of the page."""
    lines: list[str] = []
    expected = plan.expected
    if expected is not None:
        lines += _summary(expected)
    lines += ["", *_paths(plan)]
    if expected is not None:
        lines += ["", *_devices(plan, expected)]
    if plan.placement is not None:
        lines += ["", *_memory(plan.placement), *_tiers(plan.placement)]
    if expected is not None:
        lines += ["", *_bounds(expected)]
        lines += _upgrade_lines(expected)
    routing, limits = plan.routing, plan.limits
    front = ""
    if routing.query_s or routing.row_s:
        each = f"{routing.query_s * 1e6:.0f} us and {routing.row_s * 1e6:.2f} us a row"
        front = f"; reading and writing a query takes {each}"
    lines += [
        "",
        f"Routing by '{routing.policy}', default budget {plan.default_budget_ms:g} ms{front}",
        f"Batches up to {limits.max_batch_rows:,} rows, requests up to {limits.max_request_rows:,}, "
        f"a queue of up to {limits.max_queued_rows:,} rows",
    ]
    return lines[1:] if expected is None else lines


def describe_traffic(traffic: Traffic) -> str:
    """`4,000 queries/s of 23 rows on average (lognormal), poisson`."""
    kind: str = traffic.arrivals.kind
    if kind not in ("poisson", "trace"):
        kind = f"{kind} by {traffic.arrivals.factor:g}"
    return f"{rate(traffic.rate)} queries/s of {_sizes(traffic.sizes)}, {kind}"


def describe_bottleneck(bound: Bottleneck) -> str:
    """`time of cpu (+2,090 information/s without it)`."""
    gain = f" (+{rate(bound.gain)} information/s without it)"
    if bound.kind == "slo":
        return f"the SLO: {bound.what}{gain}"
    return f"{bound.kind} of {bound.what}{gain}"


def _sizes(sizes: Sizes) -> str:
    rows = f"{sizes.mean_rows:.4g} rows"
    return rows if sizes.kind == "fixed" else f"{rows} on average ({sizes.kind})"


def _summary(e: Expected) -> Iterator[str]:
    yield f"Plan for machine '{e.machine}': {describe_traffic(e.traffic)}, within {e.slo_ms:g} ms"
    yield (
        f"Serves {percent(e.served)} of it: {rate(e.rows_per_s)} of {rate(e.asked_rows_per_s)} rows/s, "
        f"information {rate(e.information_per_s)}/s ({e.quality:.5f} a row)"
    )
    if e.unserved:
        yield f"{percent(e.unserved)} of the rows come in queries that no path answers within the SLO"
    if e.cost_per_million is not None:
        yield f"A million predictions cost {e.cost_per_million:.3g} at the prices of the devices used"
    if (found := e.simulated) is not None:
        yield (
            f"In simulation {percent(found.in_budget)} of the queries are in budget, "
            f"p50 {found.p50_ms:.3g} ms, p99 {found.p99_ms:.3g} ms"
        )
        if found.highest_rate is None:
            yield "In simulation no steady rate has 99% in budget"
        else:
            yield (
                f"In simulation 99% are in budget up to a steady {rate(found.highest_rate)} queries/s, "
                f"there with {found.quality_there:.5f} a row"
            )
    if e.gap > 1e-6:
        yield f"A better plan can be at most {percent(e.gap)} better (the solver stopped there)"


def _paths(plan: Plan) -> list[str]:
    if plan.expected is None:
        return [
            "Paths",
            *(f"  {p.name:<24} {p.runtime} on {p.device}, bundle {p.bundle}" for p in plan.paths),
        ]
    rows = [["path", "of the rows", "quality", "queries up to", "batches up to", "lies in"]]
    where = {p.path: p for p in plan.placement.paths} if plan.placement else {}
    for p in plan.expected.paths:
        lies = ""
        if p.path in where:
            placed = where[p.path]
            sizes = dict(placed.bytes)
            if "cache" in placed.lookups:
                first, *rest = sizes.items()
                sizes = dict([first, ("cache", placed.cache_bytes), *rest])
            lies = ", ".join(
                f"{size(n)} {tier}"
                + ("" if placed.lookups.get(tier, 1) == 1 else f" ({percent(placed.lookups[tier])})")
                for tier, n in sizes.items()
            )
        share = percent(p.share) if p.share else "in reserve"
        rows.append(
            [p.path, share, f"{p.quality:.5f}", f"{p.largest_rows:,} rows", f"{p.batch_rows:,} rows", lies]
        )
    lines = aligned(rows)
    if any(len(p.bytes) > 1 for p in where.values()):
        lines.append("(in brackets: share of the lookups that find their row there)")
    return lines


def _devices(plan: Plan, e: Expected) -> list[str]:
    kinds = {lane.device: lane.kind for lane in plan.all_lanes()}
    rows = [["device", "lanes", "busy", "marginal price of a lane"]]
    for d in e.devices:
        name = "front" if d.device == "front" else f"{d.device} ({kinds[d.device]})"
        worth = f"{rate(d.price)} information/s" if d.price > MIN_GAIN else "nothing"
        rows.append([name, str(d.lanes), percent(min(d.load, 1.0)) if d.load < 1 - 1e-6 else "full", worth])
    return aligned(rows)


def _memory(placement: Placement) -> list[str]:
    pages = any(m.cache_bytes for m in placement.memories)
    rows = [
        [
            "memory",
            "used",
            "of",
            "rows",
            *(["disk cache"] if pages else []),
            "decoders, nets",
            "buffers",
        ]
    ]
    for m in placement.memories:
        cache = (m.cache_bytes,) if pages else ()
        parts = (m.used_bytes, m.budget_bytes, m.rows_bytes, *cache, m.fixed_bytes, m.working_bytes)
        rows.append([m.place, *(size(n) for n in parts)])
    return aligned(rows)


def _tiers(placement: Placement) -> Iterator[str]:
    """Yields, for each path, what rows outside its device's memory cost its batches."""
    for placed in placement.paths:
        for batch in placed.batches:
            read = [f"{batch.reads:.3g} disk reads" + (", started ahead" if batch.ahead else "")]
            read = read if batch.reads else []
            read += [f"{batch.remote:.3g} remote rows"] if batch.remote else []
            yield (
                f"{placed.path}: a batch of {batch.rows:,} {'row' if batch.rows == 1 else 'rows'} takes "
                f"{batch.ms:.3g} ms, with all rows in memory {batch.memory_ms:.3g} ms"
                + (f" ({'; '.join(read)})" if read else "")
            )
        if placed.batches and placed.rows("disk"):
            if placed.cost_from is None:
                source = "assumed from its description; polyrec profile --tiers measures it"
            else:
                source = f"measured with {placed.cost_from}"
            yield f"  by the cost of the disk {source}"
    if placement.popular_first:
        yield "Queries with all rows in memory go first, while rows of others are fetched (popular_first)"


def _bounds(e: Expected) -> Iterator[str]:
    if not e.bound and e.served < 1 - 1e-6:
        yield "Bound by several limits at once: freeing one of them alone gains nothing"
    elif not e.bound:
        yield "Bound by nothing: everything is served by a path of the best quality"
    for i, bound in enumerate(e.bound):
        yield f"{'Bound by' if not i else '     and'} {describe_bottleneck(bound)}"


def _upgrade_lines(e: Expected) -> Iterator[str]:
    useful = [m for m in e.more if m.information_per_s > MIN_GAIN]
    for m in useful:
        rows = "" if abs(m.rows_per_s) < MIN_GAIN else f", {m.rows_per_s:+,.0f} rows/s"
        yield f"{m.what} more would add {rate(m.information_per_s)} information/s{rows}"
    useless = [m.what for m in e.more if m.information_per_s <= MIN_GAIN]
    if useless:
        yield f"{', '.join(useless)} more would add nothing"
