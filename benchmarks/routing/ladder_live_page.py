"""Compares policies by the runs of a live ladder, and writes docs/results/ladder-live.md.

    python -m benchmarks.routing.ladder_live_page docs/results/ladder-live*.json

Reads the files of benchmarks/routing/ladder_live.py. Every figure is a ratio of information per second (rows
answered within the SLO, weighted by their path's 1 - NE) in pairs of the same turn, with a 95% interval: with
at least ENOUGH pairs, at equal speed of the server's core in both runs, otherwise Student's. Each goal of
`priced` is shown with an upper bound for any policy, assuming that a path is no faster in it than alone. This
distinguishes unreachable goals from missed ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from statistics import fmean, mean
from typing import Any

import numpy as np

from benchmarks.command import command_parser
from benchmarks.paired import ratio, ratio_at_equal
from benchmarks.routing.ladder import ROWS, SWING, paths_table, short_name
from benchmarks.routing.ladder_live import DAY, Schedule
from polyrec.models.amounts import rate
from polyrec.models.schema.batch import F64
from polyrec.planner.routing.prices import solve_prices
from polyrec.report.page import Page, Section, Table
from polyrec.report.text import markdown

AIMS = {
    "over_best": (0.99, "the best static path in hindsight"),
    "over_chosen": (1.05, "the static path chosen beforehand"),
    "over_widest": (1.5, "always the best path"),
}
"""Goals of `priced`: minimum ratios, and what they are relative to."""
SLICES = 400
"""Number of parts of a day, each with its own rate."""
ENOUGH = 8
"""Minimum number of pairs to estimate and remove the effect of the core's speed."""
FULL = 0.99
"""Share of requests in time below which a path is overloaded."""
NOTHING = 1e-9
"""Information of a run without an answer in time, so that ratios are finite."""

Run = Mapping[str, Any]


def arrived(schedule: Mapping[str, Any], turn: int) -> float:
    """Returns the requests/s that arrived in a turn, which differ randomly from the rate."""
    due_s = Schedule(**schedule).due_s(turn)
    return float((due_s >= schedule["warm_up_s"]).sum() / schedule["seconds"])


def capacities(found: Mapping[str, Any]) -> dict[str, float]:
    """Returns the maximum requests/s of each path, from the runs of its static policy.

    It is the highest of all loads, with each run scaled to the core's mean speed; if no load exceeded the
    path's capacity, at least its profile's.
    """
    most = {path["name"]: 0.0 for path in found["paths"]}
    saturated = set()
    usual = _usual_speed(found)
    for load, schedule in found["loads"].items():
        for name in most:
            pairs = [
                (arrived(schedule, turn["turn"]), turn["runs"][f"static:{name}"])
                for turn in found["turns"]
                if turn["load"] == load and f"static:{name}" in turn["runs"]
            ]
            if not pairs:
                continue
            executed = [rate * (run["ok"] + run["late"]) * usual / _speed([run]) for rate, run in pairs]
            most[name] = max(most[name], _min_capacity(load, schedule["rate"], fmean(executed)))
            if fmean(run["ok"] for _, run in pairs) < FULL:
                saturated.add(name)
    for path in found["paths"]:
        if path["name"] not in saturated:
            most[path["name"]] = max(most[path["name"]], path["capacity"])
    return most


def _min_capacity(load: str, mean: float, executed: float) -> float:
    """Returns the minimum capacity in requests/s that suffices to execute `executed` requests/s of a load."""
    rates = _rates(load, mean)
    capacity = np.sort(np.append(rates, 0.0))
    by_capacity = np.minimum(rates, capacity[:, None]).mean(axis=1)
    return max(executed, float(np.interp(executed, by_capacity, capacity)))


def _rates(load: str, mean: float) -> F64:
    """Returns the requests/s in equal parts of a load's time, float64 [parts]."""
    if load != DAY:
        return np.array([mean])
    at = 2 * np.pi * (np.arange(SLICES) + 0.5) / SLICES
    return mean * (1 - (1 - 1 / SWING) * np.cos(at))


def _speed(runs: Sequence[Run]) -> float:
    """Returns the core's mean speed during some runs, in units of work per us; 1 if not measured."""
    return fmean(1 / run["unit_us"] if "unit_us" in run else 1.0 for run in runs)


def _usual_speed(found: Mapping[str, Any]) -> float:
    """Returns the core's mean speed during all runs of a file, like `_speed`."""
    return _speed([run for turn in found["turns"] for run in turn["runs"].values()])


def bound(paths: Sequence[Mapping[str, Any]], load: str, mean: float, speed: float) -> float:
    """Returns an upper bound of any policy's information per second at a load. mean: requests/s.

    The bound answers at most the queries that arrive, each of which takes its share of the core. It assumes
    that additional rejections cost nothing, and that a day's rate is known at each moment.

    paths: each with quality and capacity, in requests/s at speed 1 of the core.
    """
    costs = [(path["quality"], 1 / path["capacity"]) for path in paths]
    most = []
    for queries_s in _rates(load, mean).tolist():
        prices = solve_prices(queries_s, [speed], [costs])
        most.append(queries_s * prices.row + speed * prices.device[0])  # the dual's optimum is the program's
    return ROWS * fmean(most)


def compared(
    turns: Sequence[Mapping[str, Run]], chosen: str, widest: str, most: Mapping[str, float]
) -> dict[str, Any]:
    """Figures of one load. turns: of each turn, figures by policy, maybe not of all. most: by policy, the
    bound at the speed of the core during its runs.

    information, ok, refused: means by policy; best: of the static paths with at least half as many turns as
    any, the one of most information in the turns of all these; over_best, over_chosen, over_widest,
    mprec_over_best: ratios; at_most: what no policy can exceed, by name of the ratio; mix: mean share of rows
    by path of `priced`; turns: those with it and best.
    """
    policies = list(dict.fromkeys(policy for turn in turns for policy in turn))
    of = {p: [turn[p] for turn in turns if p in turn] for p in policies}
    information = {p: mean(run["information"] or NOTHING for run in runs) for p, runs in of.items()}
    counts = {p: len(runs) for p, runs in of.items() if p.startswith("static:")}
    static = [p for p, count in counts.items() if 2 * count >= max(counts.values())]
    whole = [turn for turn in turns if turn.keys() >= set(static)]
    told = {p: mean(turn[p]["information"] for turn in whole) for p in static} if whole else information
    best = max(static, key=lambda p: told[p])
    paths = {path for run in of["priced"] for path in run["mix"]}
    over = {"over_best": best, "over_chosen": chosen, "over_widest": f"static:{widest}"}
    return {
        "turns": len(_pairs(turns, "priced", best)),
        "information": information,
        "ok": {p: mean(run["ok"] for run in runs) for p, runs in of.items()},
        "refused": {p: mean(run["refused"] for run in runs) for p, runs in of.items()},
        "best": best,
        **{key: _paired(_pairs(turns, "priced", static_path)) for key, static_path in over.items()},
        "at_most": {key: most.get(path, nan) / information.get(path, nan) for key, path in over.items()},
        "of_bound": information["priced"] / most["priced"],
        "mprec_over_best": _paired(_pairs(turns, "mprec", best)),
        "mix": {path: mean(run["mix"].get(path, 0.0) for run in of["priced"]) for path in paths},
    }


def _pairs(turns: Sequence[Mapping[str, Run]], over: str, under: str) -> list[tuple[Run, Run]]:
    return [(turn[over], turn[under]) for turn in turns if over in turn and under in turn]


def _paired(pairs: Sequence[tuple[Run, Run]]) -> tuple[float, float, float]:
    """Returns the ratio of information with its interval, at equal core speed if that was measured.

    NaN without pairs, which happens if only some policies were run.
    """
    if not pairs:
        return nan, nan, nan
    over, under = ([run["information"] or NOTHING for run in runs] for runs in zip(*pairs, strict=True))
    if len(pairs) < ENOUGH or any("unit_us" not in run for pair in pairs for run in pair):
        return ratio(over, under)
    return ratio_at_equal(
        over, under, *([run["unit_us"] for run in runs] for runs in zip(*pairs, strict=True))
    )


def comparisons(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns `compared` by load for one file, in its order."""
    widest = max(found["paths"], key=lambda path: path["quality"])["name"]
    capacity = capacities(found)
    usual = _usual_speed(found)
    paths = [path | {"capacity": capacity[path["name"]]} for path in found["paths"]]
    told = {}
    for load, schedule in sorted(found["loads"].items()):
        turns = [turn for turn in found["turns"] if turn["load"] == load]
        if turns:
            mean_rate = fmean(arrived(schedule, turn["turn"]) for turn in turns)
            runs = [turn["runs"] for turn in turns]
            most = {}
            for policy in {policy for turn in runs for policy in turn}:
                speed = _speed([turn[policy] for turn in runs if policy in turn]) / usual
                most[policy] = bound(paths, load, mean_rate, speed)
            told[load] = compared(runs, schedule["chosen"], widest, most)
    return told


def verdict(found: tuple[float, float, float], asked: float, at_most: float) -> str:
    """Describes whether a ratio reaches its goal. at_most: upper bound for any policy."""
    _, low, high = found
    if low >= asked:
        return "met"
    if at_most < asked:
        return f"out of reach: at most {at_most:.3f}"
    # an interval of one turn is not a number, which shows nothing
    return "missed" if high < asked else "not shown"


def page(files: Sequence[Mapping[str, Any]]) -> Page:
    """Returns the page of several files, with a section per data set."""
    sections: list[Section] = []
    for found in files:
        sections += _sections(found)
    return Page(
        "Results: a ladder of widths on a live server",
        f"{_finding(files)}\n\n"
        f"One core serves queries of {ROWS} rows over HTTP, another one sends them. Policies alternate on "
        "one server, with the same requests at the same times. Information: rows answered within the SLO, "
        "each worth its path's 1 - NE. Ratios are of information a second, with 95% intervals over paired "
        f"turns; with {ENOUGH} or more turns they are at equal speed of the server's core, which is measured "
        "during each run. Load: share of the cheapest path's capacity, parsing and answering included. "
        "Bound: no policy answers more than arrives, nor does a path answer more a second than its static "
        "policy did at any load at equal speed of the core, or than its capacity below if no load exceeded "
        "it. So past the capacity of all paths the bound is the best static path. `python -m "
        "benchmarks.routing.ladder_live` adds turns to a JSON file beside this page, and `python -m "
        "benchmarks.routing.ladder_live_page` writes the page.",
        tuple(sections),
    )


def _finding(files: Sequence[Mapping[str, Any]]) -> str:
    """Sums up the comparison with the best static path of each load."""
    cases = [each for found in files for each in comparisons(found).values()]
    over = [each["over_best"] for each in cases]
    asked, best = AIMS["over_best"]
    met = sum(verdict(each["over_best"], asked, each["at_most"]["over_best"]) == "met" for each in cases)
    least, most = min(middle for middle, *_ in over), max(middle for middle, *_ in over)
    return (
        f"`priced` makes {least:.2f} to {most:.2f} times the information of {best}, without knowing the "
        f"load; at least {asked:g} times is shown in {met} of {len(cases)} cases."
    )


def _sections(found: Mapping[str, Any]) -> list[Section]:
    told = comparisons(found)
    loads = found["loads"]
    text = (
        f"{found['machine']}, {found['made'][:10]}; SLO {found['slo_ms']:g} ms, front "
        f"{found['front_us']:.0f} us a query."
    )
    if DAY in told:
        day = loads[DAY]
        text += (
            f" Day: a rate of sin squared, {day['seconds']:g} s long, peak {day['peak']:g} times the "
            f"capacity of the costliest path, mean {SWING:g} times the lowest."
        )
    return [
        Section(found["data"], text, table=paths_table(found["paths"], "requests")),
        Section(f"{found['data']}: `priced` against static paths", table=_ratios(told, loads)),
        Section(f"{found['data']}: in time, and rows by path", table=_shares(told)),
        Section(f"{found['data']}: goals of `priced`", table=_asked(told)),
    ]


def _ratios(told: Mapping[str, Mapping[str, Any]], loads: Mapping[str, Mapping[str, Any]]) -> Table:
    head = (
        "load",
        "requests/s",
        "turns",
        "best static",
        "over it",
        "over the static chosen for twice the mean",
        "over always the best path",
        "`mprec` over the best static",
    )
    rows = []
    for load, each in told.items():
        schedule = loads[load]
        rows.append(
            (
                _load(load),
                rate(schedule["rate"]),
                str(each["turns"]),
                short_name(each["best"]),
                _interval(each["over_best"]),
                f"{_interval(each['over_chosen'])} ({short_name(schedule['chosen'])})",
                _interval(each["over_widest"]),
                _interval(each["mprec_over_best"]),
            )
        )
    return Table(head, tuple(rows))


def _shares(told: Mapping[str, Mapping[str, Any]]) -> Table:
    policies = list(next(iter(told.values()))["ok"])
    head = ("load", *(f"{short_name(policy)}, in time" for policy in policies), "`priced`: rows by path")
    rows = []
    for load, each in told.items():
        mix = sorted(each["mix"].items(), key=lambda pair: -pair[1])
        shares = ", ".join(f"{short_name(path)} {share:.0%}" for path, share in mix if share >= 0.005)
        rows.append((_load(load), *(f"{each['ok'][policy]:.1%}" for policy in policies), shares))
    return Table(head, tuple(rows))


def _asked(told: Mapping[str, Mapping[str, Any]]) -> Table:
    head = ("load", *(f"at least {asked:g} times {over}" for asked, over in AIMS.values()), "of the bound")
    rows = []
    for load, each in told.items():
        verdicts = [verdict(each[key], asked, each["at_most"][key]) for key, (asked, _) in AIMS.items()]
        rows.append((_load(load), *verdicts, f"{each['of_bound']:.3f}"))
    return Table(head, tuple(rows))


def _interval(found: tuple[float, float, float]) -> str:
    middle, low, high = found
    if np.isnan(low):
        return f"{middle:.3f} (one turn)"
    # a run without an answer in time makes any ratio possible
    return f"{middle:.3f} [{low:.3f}, {'above 99' if high > 99 else f'{high:.3f}'}]"


def _load(load: str) -> str:
    return load if load == DAY else f"{float(load):.0%}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="of benchmarks/routing/ladder_live.py")
    parser.add_argument("--out", type=Path, default=Path("docs/results/ladder-live.md"), metavar="FILE")
    args = parser.parse_args(argv)
    text = markdown(page([json.loads(file.read_text()) for file in args.files])).rstrip() + "\n"
    args.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
