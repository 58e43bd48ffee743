"""Writes the page of a policy comparison: charts by offered load and through a step of load."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from polyrec.loadtest.comparison.comparison import PolicyComparison
from polyrec.loadtest.comparison.load_step import AROUND_S, quality_by_time
from polyrec.loadtest.results.figures import Figures, timeline
from polyrec.loadtest.results.outcome import Fate
from polyrec.report.chart import Chart, Limit, Series, draw, pictures, png
from polyrec.report.load.policies import STATIC, as_json, number, tables, verdict
from polyrec.report.page import Page, Section, Tile, html

SMOOTHED_BINS = 5


def write_comparison(
    folder: Path, comparison: PolicyComparison, setup: Mapping[str, str], title: str
) -> Path:
    """Writes bench.html, bench.png and bench.json; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = json.dumps(as_json(comparison, setup), indent=1)
    (folder / "bench.json").write_text(whole + "\n", encoding="utf-8")
    by_load, steps = load_charts(comparison), step_charts(comparison)
    compared, *details = tables(comparison)
    charts = (("By offered load", by_load), ("A step of load and back", steps))
    page = Page(
        title=title,
        summary=verdict(comparison),
        tiles=tuple(
            Tile(number(trial.capacity) + "/s" if trial.capacity else "none", f"capacity: {policy}")
            for policy, trial in comparison.trials.items()
            if any(t.tried for t in comparison.trials.values())
        ),
        sections=(
            compared,
            *(Section(heading, pictures=pictures(drawn)) for heading, drawn in charts if drawn),
            *details,
            Section("Setup", terms=tuple(setup.items())),
        ),
        notes=(
            "Requests leave at Poisson times, whatever the server does; latency runs from the intended "
            "departure. Policies took turns in one run, with the same requests. Information: rows "
            "answered in budget, each weighted by the quality of its path.",
            f"Runs discarded because the load driver itself was late: {comparison.discarded_runs}.",
        ),
    )
    (folder / "bench.html").write_text(html(page), encoding="utf-8")
    if by_load:
        (folder / "bench.png").write_bytes(png(draw(by_load, title=page.summary)))
    return folder / "bench.html"


def load_charts(comparison: PolicyComparison) -> tuple[Chart, ...]:
    """Returns the charts of each policy's figures against the offered load."""
    c = comparison.conditions
    rates = sorted({rate for t in comparison.trials.values() for rate in t.ladder})
    if not rates:
        return ()

    def series(value: Callable[[Figures], float | None]) -> tuple[Series, ...]:
        return tuple(
            Series(
                policy,
                np.array(rates),
                np.array([np.nan if (f := trial.at(r)) is None else value(f) for r in rates], np.float64),
                i,
            )
            for i, (policy, trial) in enumerate(comparison.trials.items())
        )

    name = "requests/s offered"
    return (
        Chart(
            "Information",
            "Rows answered in budget, weighted by their path's quality. Higher is better.",
            name,
            "a second",
            series(lambda f: f.information),
        ),
        Chart(
            "In budget",
            f"Share of all requests answered within {1e3 * c.slo_s:g} ms.",
            name,
            "share of requests",
            series(lambda f: f.ok),
            limit=_slo(comparison),
            percent=True,
        ),
        Chart(
            "Quality",
            "Mean quality of the rows answered in budget. The axis does not begin at zero.",
            name,
            "quality of a row",
            series(lambda f: f.quality),
            from_zero=False,
        ),
        Chart(
            "99th percentile",
            "Of the answers, from the intended departure.",
            name,
            "ms (log scale)",
            series(lambda f: f.p99_ms),
            log=True,
            limit=Limit(1e3 * c.slo_s, f"budget {1e3 * c.slo_s:g} ms"),
        ),
    )


def step_charts(comparison: PolicyComparison) -> tuple[Chart, ...]:
    """Returns the charts of each policy through the step, and for policies that choose, of which path
    answered.
    """
    stepped = {p: t for p, t in comparison.trials.items() if t.stepped is not None and t.step is not None}
    if not stepped:
        return ()
    colors = {policy: i for i, policy in enumerate(comparison.trials)}
    up = comparison.conditions.warmup_s + AROUND_S
    factor = next(t.step.factor for t in stepped.values() if t.step is not None)
    marks = ((up, f"x{factor:g}"), (up + 2 * AROUND_S, "back"))
    shares, quality, mixes = [], [], []
    for policy, trial in stepped.items():
        outcome = trial.stepped
        assert outcome is not None
        line = timeline(outcome, comparison.quality, 80)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares.append(Series(policy, line.at_s, line.fates[Fate.OK] / line.rate, colors[policy]))
        if outcome.paths:
            at, mean = quality_by_time(outcome, comparison.quality)
            smooth = np.convolve(mean, np.ones(SMOOTHED_BINS) / SMOOTHED_BINS, "valid")
            cut = SMOOTHED_BINS // 2
            quality.append(Series(policy, at[cut:-cut], smooth, colors[policy]))
        if not policy.startswith(STATIC):
            mixes.append(
                Chart(
                    f"Which path answered: {policy}",
                    "Share of the rows answered, by path.",
                    "seconds",
                    "share of rows",
                    tuple(Series(name, line.at_s, line.mix[i], i) for i, name in enumerate(line.paths)),
                    kind="layers",
                    y_high=1.0,
                    percent=True,
                    marks=marks,
                )
            )
    return (
        Chart(
            "In budget",
            "Share of the requests due at each moment that were answered in time.",
            "seconds",
            "share of requests",
            tuple(shares),
            limit=_slo(comparison),
            percent=True,
            marks=marks,
        ),
        Chart(
            "Quality",
            "Mean quality of the answers through the step. The axis does not begin at zero.",
            "seconds",
            "quality of a row",
            tuple(quality),
            from_zero=False,
            marks=marks,
        ),
        *mixes,
    )


def _slo(comparison: PolicyComparison) -> Limit:
    return Limit(comparison.conditions.share, f"SLO {100 * comparison.conditions.share:g}%")
