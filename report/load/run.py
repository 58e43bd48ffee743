"""The report of one run: what each request came to, over time.

An `Outcome` in; a folder with report.html, report.png and report.json out.
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
from polyrec.report.load.chart import Chart, Limit, Series
from polyrec.report.load.page import COLOURS, Page, Table, Tile, html
from polyrec.report.load.png import save_png

FATES = {
    Fate.OK: ("in budget", 2),
    Fate.LATE: ("late", 1),
    Fate.REFUSED: ("refused early (429)", 4),
    Fate.EXPIRED: ("deadline passed (504)", 3),
    Fate.UNAVAILABLE: ("unavailable (503)", 7),
    Fate.OTHER: ("other, or no answer", 9),
}
PROMISED = 0.99


def write_run(
    folder: Path,
    outcome: Outcome,
    accuracy: Mapping[str, float],
    made: Mapping[str, str],
    *,
    title: str = "Load test",
    hits: Mapping[str, tuple[float, float]] | None = None,
    marks: tuple[tuple[float, str], ...] = (),
) -> Path:
    """Writes the folder, gives the page's path. made: how and where, for the reader.

    hits: tier of memory -> embedding rows looked up there, and the share that was found.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = figures(outcome, accuracy)
    line = timeline(outcome, accuracy)
    charts = run_charts(outcome, line, marks)
    page = Page(
        title=title,
        verdict=_verdict(outcome, found),
        kept=_kept(outcome, found),
        tiles=_tiles(outcome, found),
        charts=(("Over time", charts),),
        tables=(_fates(found), *_paths(found, accuracy), *_tiers(hits or {})),
        made=tuple(made.items()),
        notes=(
            "Latency runs from the time at which a request was meant to leave, so a stall counts for every "
            "request that it held up. Slices go by the time at which requests were due.",
        ),
    )
    (folder / "report.html").write_text(html(page), encoding="utf-8")
    save_png(charts, folder / "report.png", f"{title}: {page.verdict}")
    document = {
        "made": dict(made),
        "figures": asdict(found),
        "latency_histogram": histogram(outcome.latency_s[outcome.answered]),
        "timeline": plain(asdict(line)),
        "tiers": {tier: {"lookups": n, "hit_rate": share} for tier, (n, share) in (hits or {}).items()},
    }
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return folder / "report.html"


def run_charts(
    outcome: Outcome, line: Timeline, marks: tuple[tuple[float, str], ...] = ()
) -> tuple[Chart, ...]:
    """The charts of a run; those that would say nothing are left out."""
    budget = _budget_ms(outcome)
    limit = None if budget is None else Limit(budget, f"budget {budget:g} ms")

    below = "Below the dashed line is in budget." if limit else ""

    def series(name: str, y: F64, colour: int = 0) -> Series:
        return Series(name, line.at_s, y, colour)

    over_time = partial(Chart, x_name="seconds", marks=marks)
    charts = [
        over_time(
            title="Latency",
            says=f"In ms, by slice of {line.slice_s:.2g} s: 99 of 100 answers were faster than p99. {below}",
            y_name="ms (log scale)",
            series=tuple(
                series(f"p{q:g}", line.latency_ms[i], i)
                for i, q in reversed(list(enumerate(line.percentiles)))
            ),
            log=True,
            limit=limit,
        ),
        over_time(
            title="What requests came to",
            says="Requests a second by how they ended, stacked: the height is the load.",
            y_name="requests/s",
            series=tuple(
                series(name, line.fates[fate], colour)
                for fate, (name, colour) in FATES.items()
                if line.fates[fate].any()
            ),
            kind="layers",
        ),
        over_time(
            title="Goodput",
            says="Rows answered within their budget, rows a second.",
            y_name="rows/s",
            series=(series("goodput", line.goodput),),
        ),
    ]
    if line.paths:
        charts.append(
            over_time(
                title="Which path answered",
                says="Share of the rows answered, by path. Under load cheaper paths take over.",
                y_name="share of rows",
                series=tuple(series(name, line.mix[i], i % COLOURS) for i, name in enumerate(line.paths)),
                kind="layers",
                y_high=1.0,
                percent=True,
            )
        )
    if np.isfinite(line.accuracy).any():
        charts.append(
            over_time(
                title="Accuracy",
                says="Mean accuracy of the rows answered in budget: the quality left. Note the scale.",
                y_name="share of rows right",
                series=(series("accuracy", line.accuracy),),
                y_low=None,
                percent=True,
            )
        )
    charts.append(
        over_time(
            title="Requests in flight",
            says="Sent and not yet answered, at the end of each slice: the queue as a client sees it.",
            y_name="requests",
            series=(series("in flight", line.in_flight),),
        )
    )
    return tuple(charts)


def _budget_ms(outcome: Outcome) -> float | None:
    budgets = outcome.budget_s[np.isfinite(outcome.budget_s)]
    return round(1e3 * float(np.median(budgets)), 3) if budgets.size else None


def _kept(outcome: Outcome, found: Figures) -> bool | None:
    return None if _budget_ms(outcome) is None else found.ok >= PROMISED


def _verdict(outcome: Outcome, found: Figures) -> str:
    budget = _budget_ms(outcome)
    if budget is None:
        asked = f"{found.requests:,} requests at {found.rate:,.0f} a second"
        return f"{asked}; p99 {_ms(found.p99_ms)}. No budget was set."
    kept = "kept" if found.ok >= PROMISED else "broken"
    return (
        f"The promise, {100 * PROMISED:g}% of requests answered within {budget:g} ms, was {kept}: "
        f"{100 * found.ok:.2f}% of {found.requests:,} requests were, at {found.rate:,.0f} a second."
    )


def _tiles(outcome: Outcome, found: Figures) -> tuple[Tile, ...]:
    kept = _kept(outcome, found)
    tiles = (
        [Tile(f"{100 * found.ok:.2f}%", "of requests answered in budget", kept)] if kept is not None else []
    )
    tiles += [
        Tile(_ms(found.p50_ms), "median latency"),
        Tile(_ms(found.p99_ms), "99th percentile"),
        Tile(f"{found.goodput:,.0f}", "rows/s in budget"),
    ]
    if found.accuracy is not None:
        tiles.append(Tile(f"{100 * found.accuracy:.3f}%", "mean accuracy of the rows in budget"))
    tiles.append(Tile(f"{100 * found.degraded:.1f}%", "answered at degraded quality"))
    tiles.append(Tile(f"{100 * found.refused:.2f}%", "refused early (429)"))
    return tuple(tiles)


def _fates(found: Figures) -> Table:
    shares = (found.ok, found.late, found.refused, found.expired, found.unavailable, found.other)
    rows = tuple(
        (FATES[fate][0], f"{share * found.requests:,.0f}", f"{100 * share:.3f}%")
        for fate, share in zip(Fate, shares, strict=True)
        if share
    )
    return Table("How requests ended", ("outcome", "requests", "share"), rows)


def _paths(found: Figures, accuracy: Mapping[str, float]) -> tuple[Table, ...]:
    if not found.mix:
        return ()
    rows = tuple(
        (path, f"{100 * share:.2f}%", f"{100 * accuracy[path]:.3f}%" if path in accuracy else "not known")
        for path, share in found.mix.items()
    )
    note = "A path is a model @ the device that executes it. Accuracy: share of rows that it predicts right."
    return (Table("Paths that answered", ("path", "share of rows", "accuracy"), rows, note),)


def _tiers(hits: Mapping[str, tuple[float, float]]) -> tuple[Table, ...]:
    if not hits:
        return ()
    rows = tuple((tier, f"{n:,.0f}", f"{100 * share:.2f}%") for tier, (n, share) in hits.items())
    head = ("tier", "rows looked up", "found")
    return (
        Table("Embedding rows by tier of memory", head, rows, "What a tier lacks, the next is asked for."),
    )


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g} ms"


def plain(value: Any) -> Any:
    """Arrays as lists, what is not a number as null: JSON knows neither."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
