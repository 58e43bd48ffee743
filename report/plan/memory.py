"""Draws a plan's placement: a stacked bar per memory, divided by bundle, and lookups by tier."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from polyrec.models.amounts import percent, size
from polyrec.planner.placement import MemoryUse, Placement
from polyrec.planner.plan import Plan, PlanError
from polyrec.report.chart import FONT, LIGHT, add_legend, new_figure, style_axes

FIXED, BUFFERS, FREE = "#57606a", "#afb8c1", "#f3f4f6"
TIERS = {
    "device": "#0969da",
    "host": "#54aeff",
    "cache": "#8c959f",
    "disk": "#d4a72c",
    "remote": "#bc4c00",
}
BAR = 0.55


def draw(plan: Plan) -> Figure:
    """Draws memories above and lookups by tier below. Raises PlanError for a plan without a placement."""
    placement = plan.placement
    if placement is None:
        raise PlanError("this plan has no placement to draw; make it with polyrec plan")
    memories = [m for m in placement.memories if m.used_bytes]
    heights = (len(memories) + 0.6, len(placement.paths) + 0.6)
    figure = new_figure(9.5, 1.9 + 0.55 * sum(heights), title="Placement of the plan")
    top, bottom = figure.subplots(2, 1, height_ratios=heights)
    bundles = _memories(top, plan, memories)
    _lookups(bottom, placement)
    handles = [Patch(color=LIGHT.color(i), label=f"rows of {name}") for i, name in enumerate(bundles)]
    handles += [
        Patch(color=FIXED, label="decoders, dense nets"),
        Patch(color=BUFFERS, label="buffers, cached pages"),
    ]
    if any(m.used_bytes < m.budget_bytes for m in memories):
        handles.append(Patch(fc=FREE, ec=LIGHT.grid, label="free"))
    add_legend(top, handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4)
    return figure


def _memories(axes: Axes, plan: Plan, memories: list[MemoryUse]) -> list[str]:
    """Draws the upper panel; returns the names of the bundles in the order of their colors."""
    parts = {m.place: rows_by_bundle(plan, m) for m in memories}
    bundles = list(dict.fromkeys(name for by in parts.values() for name in by))
    # draw the whole budget if its parts stay visible
    max_bytes = max(
        m.budget_bytes if m.budget_bytes < 2 * m.used_bytes else 1.25 * m.used_bytes for m in memories
    )
    unit = 1000 ** max(0, min(4, (len(str(int(max_bytes))) - 1) // 3))
    for y, m in enumerate(memories):
        left = 0.0
        segments = [(n, LIGHT.color(bundles.index(name))) for name, n in parts[m.place].items()]
        for n, fill in (*segments, (m.fixed_bytes, FIXED), (m.cache_bytes + m.working_bytes, BUFFERS)):
            axes.barh(y, n / unit, BAR, left=left / unit, color=fill)
            left += n
        if left < m.budget_bytes:
            free = min(m.budget_bytes, max_bytes) - left
            axes.barh(y, free / unit, BAR, left=left / unit, color=FREE, ec=LIGHT.grid, linewidth=0.8)
        axes.text(
            min(max(left, m.budget_bytes), max_bytes) / unit, y,
            f" {size(m.used_bytes)} of {size(m.budget_bytes)}",
            va="center", size=FONT - 1, color=LIGHT.text,
        )  # fmt: skip
    unit_name = ("bytes", "kB", "MB", "GB", "TB")[len(str(unit)) // 3]
    style_axes(axes, x=f"{unit_name} in memory")
    axes.set_xlim(0, max_bytes / unit * 1.25)
    axes.set_yticks(range(len(memories)), [m.place for m in memories], size=FONT, color=LIGHT.text)
    axes.invert_yaxis()
    return bundles


def rows_by_bundle(plan: Plan, memory: MemoryUse) -> dict[str, int]:
    """Returns the bytes of rows in one memory by bundle, each counted once however many paths share them."""
    assert plan.placement is not None
    placed = {p.path: p.bytes for p in plan.placement.paths}
    accelerators = {path.device for path in plan.paths if "device" in placed[path.name]}
    found: dict[str, int] = {}
    for path in plan.paths:
        for tier, n in placed[path.name].items():
            # host rows of an accelerator's path are in the memory that is not the accelerator's
            near = tier == "device" or (tier == "host" and path.device not in accelerators)
            if tier == "remote":
                continue
            there = "disk" if tier == "disk" else path.device if near else None
            if n and (
                there == memory.place or (there is None and memory.place not in accelerators | {"disk"})
            ):
                found[path.bundle.name] = max(found.get(path.bundle.name, 0), n)
    return found


def _lookups(axes: Axes, placement: Placement) -> None:
    seen: list[str] = []
    for y, p in enumerate(placement.paths):
        left = 0.0
        sizes = p.bytes | {"cache": p.cache_bytes}
        for tier, share in p.lookups.items():
            axes.barh(y, 100 * share, BAR, left=left, color=TIERS[tier])
            if share > 0.12:
                label = f"{tier} {percent(share)} ({size(sizes[tier])})"
                if not sum(p.bytes.values()):
                    label = "stores no rows: all vectors are computed"
                axes.text(left + 1, y, label, va="center", size=FONT - 2, color="white")
            left += 100 * share
            seen.append(tier)
    style_axes(axes, x="lookups of stored rows that each tier answers, % (in brackets: its bytes)")
    axes.set_xlim(0, 125)
    axes.set_xticks(range(0, 101, 20))
    names = [p.path for p in placement.paths]
    axes.set_yticks(range(len(names)), names, size=FONT - 1, color=LIGHT.text)
    axes.invert_yaxis()
    handles = [Patch(color=TIERS[tier], label=tier) for tier in TIERS if tier in seen]
    add_legend(axes, handles=handles, loc="upper right")
