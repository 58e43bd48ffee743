"""Writes the report of one run: how its requests ended, over time.

`write_run` takes an `Outcome` and writes a folder with report.html, report.png and report.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyrec.loadtest.results.figures import Figures, Timeline, figures, timeline
from polyrec.loadtest.results.histogram import histogram
from polyrec.loadtest.results.outcome import Fate, Outcome
from polyrec.models.schema.batch import F64
from polyrec.report.chart import Chart, Limit, Series, draw, pictures, png
from polyrec.report.page import Page, Section, Table, Tile, html

FATES = {
    Fate.OK: ("in budget", 2),
    Fate.LATE: ("late", 1),
    Fate.REJECTED: ("rejected (429)", 4),
    Fate.EXPIRED: ("expired (504)", 3),
    Fate.UNAVAILABLE: ("unavailable (503)", 7),
    Fate.OTHER: ("other, or no answer", 9),
}
"""Label and color of each."""
_over_time = partial(Chart, x_name="seconds")
SLO_SHARE = 0.99
TITLE = "Load test"


def write_run(
    folder: Path,
    outcome: Outcome,
    quality: Mapping[str, float],
    setup: Mapping[str, str],
    *,
    hits: Mapping[str, tuple[float, float]] | None = None,
) -> Path:
    """Writes the report's files and returns the page's path.

    setup: how and where the run was made, for the reader.
    hits: memory tier -> (embedding rows looked up there, share found).
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = figures(outcome, quality)
    line = timeline(outcome, quality)
    charts = run_charts(outcome, line)
    page = Page(
        title=TITLE,
        summary=_verdict(outcome, found),
        passed=_passed(outcome, found),
        tiles=_tiles(outcome, found),
        sections=(
            _endings(found),
            Section("Over time", pictures=pictures(charts)),
            *_paths(found, quality),
            *_tiers(hits or {}),
            Section("Setup", terms=tuple(setup.items())),
        ),
        notes=(
            "Latency runs from the intended departure of a request, so a stall counts for every request that "
            "it delayed. Time slices are by the intended departure.",
        ),
    )
    (folder / "report.html").write_text(html(page), encoding="utf-8")
    (folder / "report.png").write_bytes(png(draw(charts, title=f"{TITLE}: {page.summary}")))
    document = {
        "made": dict(setup),
        "figures": asdict(found),
        "latency_histogram": histogram(outcome.latency_s[outcome.answered]),
        "timeline": jsonable(asdict(line)),
        "tiers": {tier: {"lookups": n, "hit_rate": share} for tier, (n, share) in (hits or {}).items()},
    }
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return folder / "report.html"


def run_charts(outcome: Outcome, line: Timeline) -> tuple[Chart, ...]:
    """Returns the charts of a run, omitting empty ones."""
    return (
        _latency_chart(line, _budget_ms(outcome)),
        *_answer_charts(line),
        *_path_charts(line),
        _over_time(
            title="Requests in flight",
            caption="Sent and not yet answered, at the end of each slice: the queue as a client sees it.",
            y_name="requests",
            series=(_series(line, "in flight", line.in_flight),),
        ),
    )


def _series(line: Timeline, name: str, y: F64, color: int = 0) -> Series:
    return Series(name, line.at_s, y, color)


def _latency_chart(line: Timeline, budget_ms: float | None) -> Chart:
    limit = None if budget_ms is None else Limit(budget_ms, f"budget {budget_ms:g} ms")
    below = "Below the dashed line is in budget." if limit else ""
    return _over_time(
        title="Latency",
        caption=f"Percentiles of answers, by slice of {line.slice_s:.2g} s. {below}",
        y_name="ms (log scale)",
        series=tuple(
            _series(line, f"p{q:g}", line.latency_ms[i], i)
            for i, q in reversed(list(enumerate(line.percentiles)))
        ),
        log=True,
        limit=limit,
    )


def _answer_charts(line: Timeline) -> tuple[Chart, ...]:
    return (
        _over_time(
            title="How requests ended",
            caption="Requests a second by how they ended, stacked: the height is the load.",
            y_name="requests/s",
            series=tuple(
                _series(line, name, line.fates[fate], color)
                for fate, (name, color) in FATES.items()
                if line.fates[fate].any()
            ),
            kind="layers",
        ),
        _over_time(
            title="Goodput",
            caption="Rows answered within their budget, rows a second.",
            y_name="rows/s",
            series=(_series(line, "goodput", line.goodput),),
        ),
    )


def _path_charts(line: Timeline) -> list[Chart]:
    """Returns the paths' shares and the quality of answers; empty if neither is known."""
    charts = []
    if line.paths:
        charts.append(
            _over_time(
                title="Which path answered",
                caption="Share of the rows answered, by path. Under load cheaper paths take over.",
                y_name="share of rows",
                series=tuple(_series(line, name, line.mix[i], i) for i, name in enumerate(line.paths)),
                kind="layers",
                y_high=1.0,
                percent=True,
            )
        )
    if np.isfinite(line.quality).any():
        charts.append(
            _over_time(
                title="Quality",
                caption="Mean quality of the rows answered in budget. The axis does not begin at zero.",
                y_name="quality of a row",
                series=(_series(line, "quality", line.quality),),
                from_zero=False,
            )
        )
    return charts


def _budget_ms(outcome: Outcome) -> float | None:
    budgets = outcome.budget_s[np.isfinite(outcome.budget_s)]
    return round(1e3 * float(np.median(budgets)), 3) if budgets.size else None


def _passed(outcome: Outcome, found: Figures) -> bool | None:
    return None if _budget_ms(outcome) is None else found.ok >= SLO_SHARE


def _verdict(outcome: Outcome, found: Figures) -> str:
    budget = _budget_ms(outcome)
    if budget is None:
        return (
            f"{found.requests:,} requests at {found.rate:,.0f}/s; p99 {_ms(found.p99_ms)}. "
            "No latency budget was set."
        )
    return (
        f"SLO {'met' if found.ok >= SLO_SHARE else 'missed'}: {100 * found.ok:.2f}% of {found.requests:,} "
        f"requests were answered within {budget:g} ms (target {100 * SLO_SHARE:g}%), at {found.rate:,.0f}/s."
    )


def _tiles(outcome: Outcome, found: Figures) -> tuple[Tile, ...]:
    passed = _passed(outcome, found)
    tiles = [] if passed is None else [Tile(f"{100 * found.ok:.2f}%", "of requests in budget", passed)]
    tiles += [
        Tile(_ms(found.p50_ms), "median latency"),
        Tile(_ms(found.p99_ms), "99th percentile"),
        Tile(f"{found.goodput:,.0f}", "rows/s in budget"),
    ]
    if found.quality is not None:
        tiles.append(Tile(f"{found.quality:.4f}", "mean quality of the rows in budget"))
    tiles.append(Tile(f"{100 * found.degraded:.1f}%", "answered at degraded quality"))
    tiles.append(Tile(f"{100 * found.refused:.2f}%", "rejected (429)"))
    return tuple(tiles)


def _endings(found: Figures) -> Section:
    shares = (found.ok, found.late, found.refused, found.expired, found.unavailable, found.other)
    rows = tuple(
        (FATES[fate][0], f"{share * found.requests:,.0f}", f"{100 * share:.3f}%")
        for fate, share in zip(Fate, shares, strict=True)
        if share
    )
    return Section("How requests ended", table=Table(("outcome", "requests", "share"), rows))


def _paths(found: Figures, quality: Mapping[str, float]) -> tuple[Section, ...]:
    if not found.mix:
        return ()
    rows = tuple(
        (path, f"{100 * share:.2f}%", f"{quality[path]:.4f}" if path in quality else "not known")
        for path, share in found.mix.items()
    )
    note = "A path is a model @ the device that executes it. Quality: by default information gain, 1 - NE."
    return (Section("Paths that answered", note, table=Table(("path", "share of rows", "quality"), rows)),)


def _tiers(hits: Mapping[str, tuple[float, float]]) -> tuple[Section, ...]:
    if not hits:
        return ()
    rows = tuple((tier, f"{n:,.0f}", f"{100 * share:.2f}%") for tier, (n, share) in hits.items())
    note = "A row that a tier misses is looked up in the next."
    return (Section("Embedding rows by memory tier", note, table=Table(("tier", "lookups", "hits"), rows)),)


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g} ms"


def jsonable(value: Any) -> Any:
    """Converts arrays to lists, and NaN and infinity to null."""
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, dict):
        return {k: jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
