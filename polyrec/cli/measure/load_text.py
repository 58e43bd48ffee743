"""Formats the figures of `polyrec load` for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OUTCOMES = {
    "late": "late",
    "refused": "rejected (429)",
    "expired": "expired (504)",
    "unavailable": "unavailable (503)",
    "other": "failed otherwise",
}
TAILS = {"p50": "p50", "p90": "p90", "p99": "p99", "p99_9": "p99.9", "max": "max"}


def lines(result: Mapping[str, Any]) -> list[str]:
    """Returns a line per subject. result: as `polyrec load --json` prints it."""
    lost = [f"{name} {result[key]:.2%}" for key, name in OUTCOMES.items() if result[key]]
    shown = [("unreliable", result["unreliable"])] if "unreliable" in result else []
    shown.append(("requests", f"{result['requests']:,}, {result['rate']:,.1f} a second"))
    shown.append(("in budget", ", ".join([f"{result['ok']:.2%}", *lost])))
    if result["p50_ms"] is not None:
        tails = ", ".join(f"{name} {result[f'{key}_ms']:.3g}" for key, name in TAILS.items())
        shown.append(("latency, ms", tails))
    quality = "" if result["quality"] is None else f", of quality {result['quality']:.4f} on average"
    shown.append(("rows", f"{result['goodput']:,.0f} a second in budget{quality}"))
    if result["mix"]:
        paths = [f"{path} {share:.1%}" for path, share in result["mix"].items()]
        shown.append(("paths", ", ".join([*paths, f"degraded {result['degraded']:.1%}"])))
    for what, n in result["failures"].items():
        reason = result["reasons"].get(what)
        shown.append(("failed", f"{n:,} by {what}" + (f", such as: {reason}" if reason else "")))
    waited = f", {result['held_back']:,} requests waited for one" if result["held_back"] else ""
    lag = f"p99 lag {result['lag_p99_ms']:.3g} ms"
    shown.append(("driver", f"{result['connections']} connections{waited}; {lag}"))
    if result.get("server_waited"):
        shown.append(("server", f"waited for a processor {result['server_waited']:.1%} of the time"))
    return [f"{subject:12} {text}" for subject, text in shown]
