"""The report of a contest: a table, a page, a picture and the JSON of everything that was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from polyrec.loadtest.comparison.comparison import Contest, Trial
from polyrec.loadtest.comparison.load_step import AROUND_S, accuracy_by_time
from polyrec.loadtest.results.figures import Figures, timeline
from polyrec.loadtest.results.outcome import Fate, Outcome
from polyrec.models.text_table import aligned
from polyrec.report.load.chart import Chart, Limit, Series
from polyrec.report.load.page import COLOURS, Page, Table, Tile, html
from polyrec.report.load.png import save_png
from polyrec.report.load.run import plain

STATIC = "static:"


def best_kept(trial: Trial, slo_s: float, share: float) -> Figures | None:
    """The run of most correct predictions a second among those that kept the promise; of the ladder's, the
    median run of a rate.
    """
    runs = [*trial.tried, *(f for rate in trial.ladder if (f := trial.at(rate)) is not None)]
    kept = [f for f in runs if f.keeps(slo_s, share) and f.correct is not None]
    return max(kept, key=lambda f: f.correct or 0.0, default=None)


def rate_kept(trial: Trial, slo_s: float, share: float) -> float | None:
    """As the search found; without one, the highest rate of the ladder whose median run kept the promise."""
    if trial.tried:
        return trial.capacity
    kept = (rate for rate in trial.ladder if (f := trial.at(rate)) is not None and f.keeps(slo_s, share))
    return max(kept, default=None)


def document(contest: Contest, made: Mapping[str, str]) -> dict[str, Any]:
    """Everything, as JSON has it."""
    c = contest.conditions
    trials = {}
    for policy, trial in contest.trials.items():
        best = best_kept(trial, c.slo_s, c.share)
        trials[policy] = {
            "capacity": trial.capacity,
            "best_kept": None if best is None else asdict(best),
            "tried": [asdict(f) for f in trial.tried],
            "ladder": {f"{rate:g}": [asdict(f) for f in runs] for rate, runs in trial.ladder.items()},
            "step": None if trial.step is None else asdict(trial.step),
            "served": {f"{rate:g}": runs for rate, runs in trial.served.items()},
            "simulated": {f"{rate:g}": asdict(f) for rate, f in trial.simulated.items()},
        }
    conditions = asdict(c) | {"sizes": None if c.sizes is None else c.sizes.model_dump()}
    found: dict[str, Any] = plain(
        {
            "made": dict(made),
            "conditions": conditions,
            "accuracy": contest.accuracy,
            "refused_runs": contest.refused_runs,
            "costs": None if contest.costs is None else contest.costs.model_dump(mode="json"),
            "trials": trials,
        }
    )
    return found


def tables(contest: Contest) -> tuple[Table, ...]:
    """The comparison, and the ladder by rate."""
    c = contest.conditions
    best = {p: best_kept(t, c.slo_s, c.share) for p, t in contest.trials.items()}
    static = [f.correct for p, f in best.items() if p.startswith(STATIC) and f is not None and f.correct]
    reference = max(static, default=None)
    rows = []
    for policy, trial in contest.trials.items():
        kept, step = best[policy], trial.step
        low = trial.at(min(trial.ladder)) if trial.ladder else None
        rows.append(
            (
                policy,
                _number(rate_kept(trial, c.slo_s, c.share)),
                _number(None if kept is None else kept.correct),
                _ratio(kept, reference),
                _accuracy(kept),
                _accuracy(low),
                "" if step is None else f"{100 * min(step.up.ok, step.down.ok):.2f}%",
                "" if step is None else f"{100 * max(step.up.refused, step.down.refused):.2f}%",
                "" if step is None else _seconds(step.bent_s),
                "" if step is None else _seconds(step.returned_s),
            )
        )
    comparison = Table(
        "Policies compared",
        (
            "policy",
            "highest rate kept, /s",
            "correct predictions/s at best",
            "x best static",
            "accuracy there",
            "accuracy at low load",
            "in budget, 10 s around step",
            "of all, refused early",
            "bends in",
            "quality back in",
        ),
        tuple(rows),
        f"Kept: p99 within {1e3 * c.slo_s:g} ms, and {100 * c.share:g}% of all requests answered in time.",
    )
    rates = sorted({rate for t in contest.trials.values() for rate in t.ladder})
    if not rates:
        return (comparison,)

    def ladder(title: str, note: str, show: Any) -> Table:
        head = ("policy", *(f"{rate:,.0f}/s" for rate in rates))
        cells = tuple((p, *(show(t.at(rate)) for rate in rates)) for p, t in contest.trials.items())
        return Table(title, head, cells, note)

    return (
        comparison,
        ladder("Correct predictions a second, by offered load", "", lambda f: _number(f and f.correct)),
        ladder("Share of requests in budget", "", lambda f: "" if f is None else f"{100 * f.ok:.2f}%"),
        ladder("Mean accuracy of the rows answered in budget", "", _accuracy),
        ladder("99th percentile, ms", "Of the answers.", lambda f: "" if f is None else _number(f.p99_ms)),
        ladder("Refused early (429)", "", lambda f: "" if f is None else f"{100 * f.refused:.2f}%"),
        *_simulated(contest),
    )


def _simulated(contest: Contest) -> tuple[Table, ...]:
    """Measured beside simulated, at every rate that has both."""
    rows = []
    for policy, trial in contest.trials.items():
        for rate, there in sorted(trial.simulated.items()):
            seen = trial.at(rate)
            if seen is None:
                continue
            cells = (
                *(_number(seen.p50_ms), _number(there.p50_ms), _apart(there.p50_ms, seen.p50_ms)),
                *(_number(seen.p99_ms), _number(there.p99_ms), _apart(there.p99_ms, seen.p99_ms)),
                *(_number(seen.goodput), _number(there.goodput), _apart(there.goodput, seen.goodput)),
                *(_accuracy(seen), _accuracy(there)),
            )
            rows.append((policy, f"{rate:,.0f}/s", *cells))
    if not rows:
        return ()
    head = (
        *(
            "policy",
            "rate",
            "p50 ms, live",
            "simulated",
            "apart",
            "p99 ms, live",
            "simulated",
            "apart",
            "goodput rows/s, live",
            "simulated",
            "apart",
        ),
        *("accuracy, live", "simulated"),
    )
    return (Table("Simulated against live", head, tuple(rows)),)


def _apart(there: float | None, seen: float | None) -> str:
    return "" if not there or not seen else f"{100 * (there / seen - 1):+.0f}%"


def text(found: Sequence[Table]) -> str:
    """Tables for a terminal."""
    out = []
    for table in found:
        out += [table.title, *aligned([table.head, *table.rows]), ""]
    return "\n".join(out)


def write_contest(folder: Path, contest: Contest, made: Mapping[str, str], title: str = "Policies") -> Path:
    """Writes bench.html, bench.png and bench.json; gives the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = document(contest, made)
    (folder / "bench.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    ladder, steps = ladder_charts(contest), step_charts(contest)
    headings = (("By offered load", ladder), ("A step of load and back", steps))
    page = Page(
        title=title,
        verdict=verdict(contest),
        kept=None,
        tiles=_tiles(contest),
        charts=tuple((heading, charts) for heading, charts in headings if charts),
        tables=tables(contest),
        made=tuple(made.items()),
        notes=(
            "Requests leave at Poisson times, whatever the server does; latency runs from the "
            "time at which each was meant to leave. Policies took turns in one run, with the same requests. "
            "Correct predictions: rows answered in budget, each weighed with the accuracy of its path.",
            f"Runs left out or repeated because the load driver itself was late: {contest.refused_runs}.",
        ),
    )
    (folder / "bench.html").write_text(html(page), encoding="utf-8")
    if ladder:
        save_png(ladder, folder / "bench.png", page.verdict)
    return folder / "bench.html"


def verdict(contest: Contest) -> str:
    """The comparison in one sentence."""
    c = contest.conditions
    best = {p: best_kept(t, c.slo_s, c.share) for p, t in contest.trials.items()}
    ranked = sorted(
        ((f.correct, p) for p, f in best.items() if f is not None and f.correct is not None), reverse=True
    )
    if not ranked:
        return f"No policy kept {1e3 * c.slo_s:g} ms."
    top, first = ranked[0]
    static = next(((v, p) for v, p in ranked if p.startswith(STATIC)), None)
    beside = "" if static is None or static[1] == first else f", {top / static[0]:.2f} times {static[1]}"
    return f"{first} gave most correct predictions within {1e3 * c.slo_s:g} ms: {top:,.0f} a second{beside}."


def ladder_charts(contest: Contest) -> tuple[Chart, ...]:
    """What each policy did at each load."""
    c = contest.conditions
    rates = sorted({rate for t in contest.trials.values() for rate in t.ladder})
    if not rates:
        return ()
    x = np.array(rates)

    def series(value: Any) -> tuple[Series, ...]:
        made = []
        for i, (policy, trial) in enumerate(contest.trials.items()):
            seen = [trial.at(rate) for rate in rates]
            y = [np.nan if f is None or value(f) is None else value(f) for f in seen]
            made.append(Series(policy, x, np.array(y, np.float64), i % COLOURS))
        return tuple(made)

    name = "requests/s offered"
    return (
        Chart(
            "Correct predictions",
            "Rows answered in budget, weighed with their path's accuracy. Higher is better.",
            name,
            "a second",
            series(lambda f: f.correct),
        ),
        Chart(
            "In budget",
            f"Share of all requests answered within {1e3 * c.slo_s:g} ms.",
            name,
            "share of requests",
            series(lambda f: f.ok),
            limit=Limit(c.share, f"promise {100 * c.share:g}%"),
            percent=True,
        ),
        Chart(
            "Accuracy",
            "Mean accuracy of the rows answered in budget: quality bends as load rises. Note the scale.",
            name,
            "share of rows right",
            series(lambda f: f.accuracy),
            y_low=None,
            percent=True,
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


def step_charts(contest: Contest) -> tuple[Chart, ...]:
    """How policies took the step; and for those that choose, which path answered."""
    stepped = {p: t for p, t in contest.trials.items() if t.stepped is not None and t.step is not None}
    if not stepped:
        return ()
    numbers = {policy: i % COLOURS for i, policy in enumerate(contest.trials)}
    one = next(iter(stepped.values()))
    assert one.step is not None
    up = contest.conditions.warmup_s + AROUND_S
    marks = ((up, f"x{one.step.factor:g}"), (up + 2 * AROUND_S, "back"))
    shares, accuracy, mixes = [], [], []
    for policy, trial in stepped.items():
        outcome = trial.stepped
        assert outcome is not None
        line = timeline(outcome, contest.accuracy, 80)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares.append(Series(policy, line.at_s, line.fates[Fate.OK] / line.rate, numbers[policy]))
        if outcome.paths:
            at, mean = _smoothed(outcome, contest)
            accuracy.append(Series(policy, at, mean, numbers[policy]))
        if not policy.startswith(STATIC):
            mixes.append(
                Chart(
                    f"Which path answered: {policy}",
                    "Share of the rows answered, by path.",
                    "seconds",
                    "share of rows",
                    tuple(Series(n, line.at_s, line.mix[i], i % COLOURS) for i, n in enumerate(line.paths)),
                    kind="layers",
                    y_high=1.0,
                    percent=True,
                    marks=marks,
                )
            )
    promise = Limit(contest.conditions.share, f"promise {100 * contest.conditions.share:g}%")
    return (
        Chart(
            "In budget",
            "Share of the requests due at each moment that were answered in time.",
            "seconds",
            "share of requests",
            tuple(shares),
            limit=promise,
            percent=True,
            marks=marks,
        ),
        Chart(
            "Accuracy",
            "Mean accuracy of what was answered: how fast quality bends, and returns. Note the scale.",
            "seconds",
            "share of rows right",
            tuple(accuracy),
            y_low=None,
            percent=True,
            marks=marks,
        ),
        *mixes,
    )


def _smoothed(outcome: Outcome, contest: Contest) -> tuple[Any, Any]:
    at, mean = accuracy_by_time(outcome, contest.accuracy)
    return at[2:-2], np.convolve(mean, np.ones(5) / 5, "valid")


def _tiles(contest: Contest) -> tuple[Tile, ...]:
    return tuple(
        Tile(_number(trial.capacity) + "/s" if trial.capacity else "none", f"highest rate kept: {policy}")
        for policy, trial in contest.trials.items()
        if any(t.tried for t in contest.trials.values())
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(found: Figures | None, reference: float | None) -> str:
    return "" if found is None or not found.correct or not reference else f"{found.correct / reference:.2f}"


def _accuracy(found: Figures | None) -> str:
    return "" if found is None or found.accuracy is None else f"{100 * found.accuracy:.3f}%"


def _seconds(value: float | None) -> str:
    return "not by the end" if value is None else f"{value:.1f} s"
