"""Runs `polyrec rollout`: makes one admin call and prints its answer as a table."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyrec.client.admin import AdminCalls, AdminFailed, NoAnswer
from polyrec.models.fetching.url import model_place
from polyrec.models.text_table import aligned

ROLLED_BACK = 3
"""Exit status of `start --wait` if the version was rolled back."""
STILL_RUNNING = 4
"""Exit status of `start --wait` if the rollout still runs at the end of `--timeout`."""
POLL_S = 1.0
PATIENCE_S = 300.0
"""Longest time without an answer of the server while waiting: one that starts again opens its bundles."""
WAITED_MS = 0.5
"""Waits of the canary's lanes that are shown: mean milliseconds an answer."""
BOUNDS = (
    "max_psi",
    "max_loss",
    "max_live_loss",
    "max_failed",
    "max_late",
    "max_slowdown",
    "slack_ms",
    "min_requests",
)


def run_call(args: argparse.Namespace) -> int:
    """Makes the call and returns the exit status. Raises AdminFailed."""
    with AdminCalls(args.url, args.model) as calls:
        try:
            if args.call == "rollback" and args.previous:
                return _return_to_previous(calls, args.json)
            status = _call(calls, args)
            _print(status, args.json)
            if args.call != "start" or not args.wait:
                return 0
            return _wait(calls, status, args)
        except KeyboardInterrupt:
            if args.call == "start":
                print(_how_to_end(args), file=sys.stderr)
            raise


def _return_to_previous(calls: AdminCalls, as_json: bool) -> int:
    """Serves the plan from before the last promotion or reload; prints what it is. Raises AdminFailed."""
    calls.require_one_model()
    served = calls.post("rollback", {})
    text = f"serves version {served['bundle_version']} again: {', '.join(served['paths'])}"
    print(json.dumps(served) if as_json else "\n".join([text, *served["changes"]]))
    return 0


def _wait(calls: AdminCalls, status: dict[str, Any], args: argparse.Namespace) -> int:
    """Waits until the rollout just started has ended; returns the exit status. Raises AdminFailed."""
    began = status["rollout"]["began"]
    end = math.inf if args.timeout is None else time.monotonic() + args.timeout
    answered, told = time.monotonic(), False
    while status["rollout"] is not None and status["rollout"]["began"] == began:
        left = end - time.monotonic()
        if left <= 0:
            _print(status, args.json)
            print(_how_to_end(args), file=sys.stderr)
            return STILL_RUNNING
        time.sleep(min(POLL_S, left))
        try:
            status = calls.get("rollout")
            answered, told = time.monotonic(), False
        except NoAnswer as e:
            # the server is busy or restarting; a refused token, in contrast, stays refused
            if not told:
                told = True
                print(f"{e}; retrying for {PATIENCE_S:g} s", file=sys.stderr)
            if time.monotonic() - answered > PATIENCE_S:
                raise AdminFailed(f"{e}; how the rollout ended is unknown") from None
    _print(status, args.json)
    ended = [other for other in status["ended"] if other["began"] == began]
    if not ended:
        raise AdminFailed(
            "the server was restarted, which ended the rollout; it serves what it was started with"
        )
    return 0 if ended[0]["outcome"] == "promoted" else ROLLED_BACK


def _how_to_end(args: argparse.Namespace) -> str:
    """Explains that a rollout outlives the command that started it, and how to end it."""
    at = f" --url {args.url}" if args.model is None else f" --url {args.url} --model {args.model}"
    return (
        "the rollout continues, or begins once the new version is loaded; "
        f"show it: polyrec rollout status{at}; end it: polyrec rollout rollback{at}"
    )


def _call(calls: AdminCalls, args: argparse.Namespace) -> dict[str, Any]:
    if args.call == "status":
        return calls.get("rollout")
    calls.require_one_model()
    body: dict[str, Any] = {}
    if args.call == "start":
        place = model_place(args.plan)
        # a relative path refers to this shell's folder, not the server's
        plan = place.resolve() if isinstance(place, Path) and place.exists() else place
        body = {"plan": str(plan), **start_arguments(args)}
    elif args.call == "share":
        body = {"share": args.share}
    elif args.reason is not None:
        body = {"reason": args.reason}
    return calls.post(f"rollout/{args.call}", body)


def start_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the body of a start, except for the plan."""
    bounds = {name: getattr(args, name) for name in BOUNDS if getattr(args, name) is not None}
    if args.promote_after is not None:
        bounds["promote_after_s"] = args.promote_after
    if args.judge_within is not None:
        bounds["judge_within_s"] = args.judge_within
    shadow = {"shadow": args.shadow, "compare_per_s": args.compare_per_s}
    return {"share": args.share, **shadow, "by": args.by, "bounds": bounds}


def _print(status: Mapping[str, Any], as_json: bool) -> None:
    print(json.dumps(status) if as_json else "\n".join(lines(status)))


def lines(status: Mapping[str, Any]) -> list[str]:
    """Formats the status: the rollout in progress or else the last one, then the earlier ones."""
    rollout, ended, model = status["rollout"], list(status["ended"]), f"model {status['model']}: "
    shown: list[str] = []
    if rollout is not None:
        by = f" of the values of {rollout['by']}" if rollout["by"] else " of the requests"
        shown.append(
            f"{model}{rollout['state']}: version {rollout['canary_version']} gets {rollout['share']:g}{by}, "
            f"beside {rollout['stable_version']} ({rollout['plan']})"
        )
        shown += [f"if promoted: {change}" for change in rollout["changes"]]
        if rollout["decision"] is None:
            shown.append("no decision yet")
        else:
            shown += _decision(rollout["decision"], rollout["bounds"])
    elif ended:
        last = ended.pop(0)
        shown.append(model + _ended(last))
        shown += last["changes"]
        if last["decision"] is not None:
            shown += _decision(last["decision"], {})
    else:
        shown.append(f"{model}no rollout")
    return [*shown, *(f"earlier: {_ended(other)}" for other in ended)]


def _ended(ended: Mapping[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended["ended"]))
    outcome = ended["outcome"].replace("_", " ")
    after = f"after {ended['lasted_s']:.0f} s"
    return f"{outcome} at {at} {after}: version {ended['canary_version']}: {ended['reason']}"


def _allowed(bounds: Mapping[str, Any], name: str) -> str:
    return f", allowed {bounds[name]:g}" if name in bounds else ""


def _decision(decision: Mapping[str, Any], bounds: Mapping[str, Any]) -> list[str]:
    """Formats figures and verdict. bounds: of a rollout in progress, else empty."""
    figures = decision["figures"]
    rows = [["", "requests", "failed", "late", "p50 ms", "p95 ms", "p99 ms"]]
    for arm in ("stable", "canary"):
        found = figures[arm]
        counts = [str(found["requests"])]
        for name in ("failed", "late"):
            share = f" ({100 * found[name] / found['requests']:.1f}%)" if found[name] else ""
            counts.append(f"{found[name]}{share}")
        latency = [found[f"{p}_ms"] for p in ("p50", "p95", "p99")]
        rows.append([arm, *counts, *("-" if ms is None else f"{ms:.2f}" for ms in latency)])
    psi = "scores: too few requests"
    if figures["psi"] is not None:
        low, high = figures["psi_low"], figures["psi_high"]
        psi = f"scores: PSI {figures['psi']:.3f}, beyond chance {low:.3f} to {high:.3f}"
        psi += _allowed(bounds, "max_psi")
    shown = [*aligned(rows), psi]
    canary = figures["canary"]
    if canary.get("waited_ms", 0) > WAITED_MS or canary.get("excused"):
        shown.append(
            f"the canary's lanes waited for a CPU core: {canary['waited_ms']:.2f} ms per answer and "
            f"{canary['excused']} unanswered requests are not counted"
        )
    if figures.get("pairs") is not None:
        pairs = f"same requests: {figures['pairs']} answered by both, {figures['pairs_failed']} failed"
        if figures.get("pairs_missed"):
            pairs += f", {figures['pairs_missed']} without time to compare"
        if figures["loss"] is not None:
            low, high = figures["loss_low"], figures["loss_high"]
            pairs += f"; expected loss of information {figures['loss']:.4f}, {low:.4f} to {high:.4f}"
            pairs += _allowed(bounds, "max_loss")
        shown.append(pairs)
    if figures.get("live") is not None:
        low, high = figures["live_low"], figures["live_high"]
        live = f"labeled requests: information gain {figures['live']:+.4f}, {low:+.4f} to {high:+.4f}"
        shown.append(live + (f", allowed {-bounds['max_live_loss']:g}" if "max_live_loss" in bounds else ""))
    age = f"after {figures['age_s']:.0f} s"
    return [*shown, f"decision {age}: {decision['verdict']}: {decision['reason']}"]
