"""Describes a loop as text or JSON: whether it runs, held steps, and the last iterations."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import Any

from polyrec.loop.folder import LoopFolder
from polyrec.loop.iteration import FORCED, Iteration
from polyrec.models.text_table import aligned


def lines(folder: LoopFolder, max_count: int = 10) -> list[str]:
    """Formats the status for a terminal. max_count: number of iterations. Raises LoopError."""
    found = folder.iterations(max_count)
    shown = ["a loop runs here" if folder.is_running else "no loop runs here; what is recorded:"]
    shown += [f"held before {step}: {reason}" for step, reason in folder.holds().items()]
    if not found:
        return [*shown, "no iteration yet"]
    rows = [["iteration", "began", "rows until", "state", "serving", "new", "difference"]]
    rows += [_row(iteration) for iteration in found]
    return [
        *shown,
        "",
        *aligned(rows, left=4),
        "",
        *_explained(found[-1], f" --state {shlex.quote(str(folder.path))}"),
    ]


def as_json(folder: LoopFolder, max_count: int = 10) -> dict[str, Any]:
    """Returns the status as JSON. Raises LoopError."""
    return {
        "running": folder.is_running,
        "holds": folder.holds(),
        "plan": str(folder.plan),
        "iterations": [i.model_dump(mode="json") for i in folder.iterations(max_count)],
    }


def _row(iteration: Iteration) -> list[str]:
    state = iteration.state.replace("_", " ")
    if iteration.state in ("running", "held"):
        state += f": {iteration.step}"
    evaluated = iteration.figures("evaluate")
    serving = evaluated.get("serving") or iteration.figures("check").get("information")
    differences = list(evaluated.get("differences", {}).values())
    worst = min((d[0] for d in differences if d[0] is not None), default=None)
    return [
        str(iteration.number),
        _time(iteration.began),
        iteration.until.removesuffix("+00:00"),
        state,
        _figure(serving),
        _figure(evaluated.get("information")),
        "-" if worst is None else f"{worst:+.4f}",
    ]


def _explained(iteration: Iteration, where: str) -> list[str]:
    """Formats the steps of an iteration with their reasons, and the commands that apply now.

    where: the option that names the folder.
    """
    shown = [f"iteration {iteration.number}, of rows since {iteration.since or 'the beginning of the log'}:"]
    for done in iteration.done:
        result, seconds = done.result, done.ended - done.began
        rows = "" if result.verdict == "go" else f" (the next iteration: these rows are {result.rows})"
        shown.append(
            f"  {done.step} {result.verdict.replace('_', ' ')}, {seconds:.0f} s: {result.reason}{rows}"
        )
    if iteration.error is not None:
        attempt = f" (attempt {iteration.attempts})" if iteration.state == "running" else ""
        shown.append(f"  {iteration.step}: {iteration.error}{attempt}")
    elif iteration.state == "running":
        shown.append(f"  {iteration.step}: in progress or next since {_time(iteration.step_began)}")
    it = f"{where} --iteration {iteration.number}"
    if iteration.state in FORCED:
        shown.append(f"to continue it anyway, until the next one begins: polyrec loop force{it}")
    if iteration.state == "running":
        shown.append(
            f"to end it: polyrec loop drop{it}; to stop before a step: polyrec loop hold STEP{where}"
        )
    return shown


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _figure(ends: Sequence[float | None] | None) -> str:
    return "-" if not ends or ends[0] is None else f"{ends[0]:.4f}"
