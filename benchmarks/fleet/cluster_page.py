"""Writes the results page on cluster ingresses and faults, docs/results/cluster.md."""

from __future__ import annotations

from statistics import median
from typing import Any

from polyrec.report.text import markdown_table

NAMES = {
    "single server": "a single server, asked directly",
    "balancer": "HAProxy to the replicas' ports (default)",
    "ray": "Serve's proxy",
    "ray-haproxy": "Serve's HAProxy mode",
}

LAG = "driver's lag p99 ms"


def page(found: dict[str, Any]) -> str:
    """Returns cluster.md. found: results of benchmarks/fleet/cluster.py."""
    settings, machine = found["settings"], found["machine"]
    single = {n: _median(found, "single server", n, "requests_s") for n in (1, 16)}
    rows = []
    for way in dict.fromkeys(turn["way"] for turn in found["ways"]):
        for in_flight in (1, 16):
            figures = [_median(found, way, in_flight, k) for k in ("requests_s", "p50_ms", "p99_ms")]
            share = f"{figures[0] / single[in_flight]:.0%}"
            rows.append(
                [NAMES[way], str(in_flight), f"{figures[0]:,.0f}", share, *(f"{f:.2f}" for f in figures[1:])]
            )
    faults = found["faults"]
    phases = [
        [
            phase["phase"],
            "" if phase["took_s"] is None else f"{phase['took_s']:.1f}",
            *(f"{phase[k]:,}" for k in ("requests", "lost", "late")),
            *(f"{phase[k]:.1f}" for k in ("p50_ms", "p99_ms", "max_ms", "driver_lag_p99_ms")),
        ]
        for phase in [*faults["phases"], {"phase": "all", "took_s": None, **faults["all"]}]
    ]
    lines = [
        "# Results: a cluster",
        "",
        "Two logical nodes of Ray with one replica each on one machine, whose cores servers, HAProxy, Ray "
        "and the load driver share, in a network namespace. "
        "`python -m benchmarks.fleet.cluster PLAN --json FILE --page FILE` writes this page "
        f"({machine['processor']}, cores: {machine['cores']}, Python {machine['python']}, "
        f"{found['made'][:10]}; all turns are in [cluster.json](cluster.json)). "
        "The ways in: [cluster](../cluster.md#ways-in).",
        "",
        "## Ways in",
        "",
        f"Closed loops, JSON tensors of {settings['rows']} rows, a small model ({found['model']}), median of "
        f"{settings['turns']} turns of {settings['seconds']} s. With so small a model nearly all time is the "
        "way's own.",
        "",
        *markdown_table(
            ["way in", "in flight", "requests/s", "of the single server's", "p50 ms", "p99 ms"], rows
        ),
        "",
        "Two replicas cannot beat one server here: there are no more cores than before, and the driver takes "
        "one of them. The figures show what a way costs, not how it scales.",
        "",
        "## Faults, a roll, changes of size",
        "",
        f"Poisson arrivals at {settings['rate']} requests/s through the balancer, each with a budget of "
        f"{settings['budget_ms']} ms; one disturbance at the start of each {settings['phase_seconds']} s. "
        "Lost: not answered 200.",
        "",
        *markdown_table(
            ["phase", "took s", "requests", "lost", "late", "p50 ms", "p99 ms", "longest ms", LAG],
            phases,
        ),
        "",
        "`took`: until two replicas serve again, or the call returned. Starting a server (imports, loading, "
        "Ray's worker) takes seconds of the cores that all share, which makes the tails; on nodes of their "
        "own replicas start alone. At 200 requests/s with budgets of 100 ms that was too much for "
        "these cores: a quarter of the requests were rejected (429) or out of budget (504), which a "
        "balancer does not send elsewhere.",
    ]
    return "\n".join(lines) + "\n"


def _median(found: dict[str, Any], way: str, in_flight: int, figure: str) -> float:
    return float(median(t[figure] for t in found["ways"] if t["way"] == way and t["in_flight"] == in_flight))
