"""Formats a comparison of routing policies as tables, one sentence, and JSON of everything measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from polyrec.loadtest.comparison.comparison import Conditions, PolicyComparison, Trial
from polyrec.loadtest.results.figures import Figures
from polyrec.report.load.run import jsonable
from polyrec.report.page import Section, Table

STATIC = "static:"


def best_run(trial: Trial, slo_s: float, share: float) -> Figures | None:
    """Returns the run with the most information per second among those that met the SLO.

    Of a ladder rate, only its median run counts.
    """
    runs = [*trial.held, *(f for rate in trial.ladder if (f := trial.at(rate)) is not None)]
    kept = [f for f in runs if f.meets_slo(slo_s, share) and f.information is not None]
    return max(kept, key=lambda f: f.information or 0.0, default=None)


def highest_rate(trial: Trial, slo_s: float, share: float) -> float | None:
    """Returns the capacity found by the search; without one, the highest ladder rate whose median run met
    the SLO.
    """
    if trial.tried:
        return trial.capacity
    kept = (rate for rate in trial.ladder if (f := trial.at(rate)) is not None and f.meets_slo(slo_s, share))
    return max(kept, default=None)


def best_runs(comparison: PolicyComparison) -> dict[str, Figures | None]:
    """Returns `best_run` of each policy."""
    c = comparison.conditions
    return {policy: best_run(trial, c.slo_s, c.share) for policy, trial in comparison.trials.items()}


def as_json(comparison: PolicyComparison, setup: Mapping[str, str]) -> dict[str, Any]:
    """Returns everything that was measured; JSON-serializable."""
    c = comparison.conditions
    best = best_runs(comparison)
    trials = {
        policy: {
            "capacity": trial.capacity,
            "best_kept": None if (f := best[policy]) is None else asdict(f),
            "tried": [asdict(f) for f in trial.tried],
            "ladder": {f"{rate:g}": [asdict(f) for f in runs] for rate, runs in trial.ladder.items()},
            "step": None if trial.step is None else asdict(trial.step),
            "served": {f"{rate:g}": runs for rate, runs in trial.served.items()},
            "simulated": {f"{rate:g}": asdict(f) for rate, f in trial.simulated.items()},
        }
        for policy, trial in comparison.trials.items()
    }
    found: dict[str, Any] = jsonable(
        {
            "made": dict(setup),
            "conditions": asdict(c) | {"sizes": None if c.sizes is None else c.sizes.model_dump()},
            "quality": comparison.quality,
            "refused_runs": comparison.discarded_runs,
            "doubts": doubts(comparison.trials, c, len(comparison.quality)),
            "costs": None if comparison.costs is None else comparison.costs.model_dump(mode="json"),
            "trials": trials,
        }
    )
    return found


def verdict(comparison: PolicyComparison) -> str:
    """Summarizes the comparison in one sentence."""
    slo = f"{1e3 * comparison.conditions.slo_s:g} ms"
    ranked = sorted(
        (
            (f.information, p)
            for p, f in best_runs(comparison).items()
            if f is not None and f.information is not None
        ),
        reverse=True,
    )
    if comparison.discarded_runs and not any(t.tried or t.ladder for t in comparison.trials.values()):
        return "No run counts: the driver was late in all of them."
    if not ranked:
        return f"No policy met the SLO of {slo}."
    top, first = ranked[0]
    static = next(((v, p) for v, p in ranked if p.startswith(STATIC)), None)
    ratio = "" if static is None or static[1] == first else f", {top / static[0]:.2f} times {static[1]}"
    return f"{first} gave most information within {slo}: {top:,.0f} a second{ratio}."


def doubts(trials: Mapping[str, Trial], conditions: Conditions, paths: int) -> list[str]:
    """Returns what speaks against a comparison of policies: too few paths of the plan to choose from, and
    capacities that runs of the ladder contradict.
    """
    found = []
    if paths == 1 and len(trials) > 1:
        found.append("The plan has one path, so differences between policies are mostly noise.")
    for policy, trial in trials.items():
        capacity = trial.capacity or 0.0
        for rate in sorted(rate for rate in trial.ladder if rate <= capacity):
            run = trial.at(rate)
            if run is None or run.meets_slo(conditions.slo_s, conditions.share):
                continue
            found.append(
                f"The capacity of {policy} is doubtful: found {number(capacity)}/s, but later at "
                f"{number(rate)}/s {100 * run.ok:.2f}% of the requests were in budget. Repeat it on a quiet "
                "machine."
            )
            break
    return found


def tables(comparison: PolicyComparison) -> tuple[Section, ...]:
    """Returns the comparison, the ladder by rate, and simulated beside live results."""
    overview = _overview(comparison)
    rates = sorted({rate for t in comparison.trials.values() for rate in t.ladder})
    if not rates:
        return (overview,)

    def ladder(title: str, show: Callable[[Figures], str]) -> Section:
        cells = tuple(
            (p, *("" if (f := t.at(rate)) is None else show(f) for rate in rates))
            for p, t in comparison.trials.items()
        )
        return Section(title, table=Table(("policy", *(f"{rate:,.0f}/s" for rate in rates)), cells))

    return (
        overview,
        ladder("Information a second, by offered load", lambda f: number(f.information)),
        ladder("Share of requests in budget", lambda f: f"{100 * f.ok:.2f}%"),
        ladder("Mean quality of the rows answered in budget", _quality),
        ladder("99th percentile of the answers, ms", lambda f: number(f.p99_ms)),
        ladder("Rejected (429)", lambda f: f"{100 * f.refused:.2f}%"),
        *_simulated(comparison),
    )


def _overview(comparison: PolicyComparison) -> Section:
    """Returns one row per policy: its capacity, its best run, and the step of the load."""
    c = comparison.conditions
    best = best_runs(comparison)
    static = [
        f.information for p, f in best.items() if p.startswith(STATIC) and f is not None and f.information
    ]
    reference = max(static, default=None)
    rows = []
    for policy, trial in comparison.trials.items():
        top, step = best[policy], trial.step
        low = trial.at(min(trial.ladder)) if trial.ladder else None
        rows.append(
            (
                policy,
                number(highest_rate(trial, c.slo_s, c.share)),
                number(None if top is None else top.information),
                ""
                if top is None or not top.information or not reference
                else f"{top.information / reference:.2f}",
                _quality(top),
                _quality(low),
                "" if step is None else f"{100 * min(step.up.ok, step.down.ok):.2f}%",
                "" if step is None else f"{100 * max(step.up.refused, step.down.refused):.2f}%",
                "" if step is None else _seconds(step.bent_s),
                "" if step is None else _seconds(step.returned_s),
            )
        )
    head = (
        "policy",
        "capacity, requests/s",
        "information/s at best",
        "x best static",
        "quality there",
        "quality at low load",
        "in budget, 10 s around step",
        "rejected around step",
        "quality adapts in",
        "quality back in",
    )
    note = " ".join(
        (
            f"SLO: p99 within {1e3 * c.slo_s:g} ms, and {100 * c.share:g}% of all requests answered in time.",
            *doubts(comparison.trials, c, len(comparison.quality)),
        )
    )
    return Section("Policies compared", note, table=Table(head, tuple(rows)))


def _simulated(comparison: PolicyComparison) -> tuple[Section, ...]:
    """Returns live beside simulated results, for every rate that has both."""
    rows = []
    for policy, trial in comparison.trials.items():
        for rate, model in sorted(trial.simulated.items()):
            live = trial.at(rate)
            if live is None:
                continue
            cells = [policy, f"{rate:,.0f}/s"]
            for figure in ("p50_ms", "p99_ms", "goodput"):
                a, b = getattr(live, figure), getattr(model, figure)
                cells += [number(a), number(b), f"{100 * (b / a - 1):+.0f}%" if a and b else ""]
            rows.append((*cells, _quality(live), _quality(model)))
    if not rows:
        return ()
    compared = (f"{name}, live|simulated|difference" for name in ("p50 ms", "p99 ms", "goodput rows/s"))
    head = ("policy", "rate", *"|".join(compared).split("|"), "quality, live", "simulated")
    return (Section("Simulated against live", table=Table(head, tuple(rows))),)


def number(value: float | None) -> str:
    """Formats with three digits, or in full from 100 on; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _quality(found: Figures | None) -> str:
    return "" if found is None or found.quality is None else f"{found.quality:.4f}"


def _seconds(value: float | None) -> str:
    return "not by the end" if value is None else f"{value:.1f} s"
