"""Implements the steps of an iteration, except the canary. Each only changes files, and can be repeated.

    check      measures the serving plan on the newest rows: enough clicks, plausible labels, drift
    train      runs `polyrec train --from` the serving bundle in a separate process, with checkpoints
    evaluate   compares the new bundle with the serving one on the newest rows, which neither was trained on,
               and decides whether it is published
    publish    writes the serving plan with the new bundle: quality measured again, latencies as planned

polyrec/loop/loop.py executes them; the canary step is in polyrec/loop/canary.py.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyrec.loop.folder import BUNDLE, CHECKPOINT, PLAN, TRAIN_LOG, LoopFolder
from polyrec.loop.iteration import LEARNED, Iteration, LoopError, Rows, StepResult, Verdict
from polyrec.loop.quality import Measured, measure
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.prediction_log.reader import PredictionLogReader
from polyrec.models.data.split import fit_splitter
from polyrec.models.errors import BundleError, DataError
from polyrec.models.evaluation.comparison import Interval
from polyrec.planner.plan import Plan, load_plan, save_plan

NICE = 10
POLL_S = 0.5
SERVING, NEW = "serving", "new"


class IterationDropped(LoopError):
    """Raised when an operator dropped the iteration during a step."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Limits of the steps, in information gain unless noted otherwise.

    least_clicks: minimum clicks in the newest rows; with fewer, an iteration waits.
    drift: minimum loss of the serving model; with less, an iteration waits. None: does not wait for drift.
    max_drop: share of its last figure that the serving model may lose on the newest rows.
    max_calibration: factor by which predicted and actual clicks may differ.
    margin: loss that a new bundle must be shown not to exceed.
    train_options: additional options of `polyrec train`.
    keep: number of earlier serving bundles to keep.
    """

    log: Path
    least_clicks: int = 200
    drift: float | None = None
    max_drop: float = 0.5
    max_calibration: float = 2.0
    margin: float = 0.005
    train_options: tuple[str, ...] = ()
    keep: int = 3


def only_bundle(plan: Plan) -> Path:
    """Returns the single bundle of a plan's paths. Raises LoopError if a loop cannot continue the plan."""
    bundles = {path.bundle for path in plan.paths}
    if len(bundles) > 1:
        raise LoopError(
            f"the plan has {len(bundles)} bundles; a loop continues one, with any number of paths"
        )
    if plan.in_tiers:
        raise LoopError("the plan has rows in tiers, placed for its bundle: plan again instead")
    return bundles.pop()


def check(iteration: Iteration, folder: LoopFolder, settings: LoopSettings) -> StepResult:
    """Measures the serving plan on the newest rows. Raises PolyrecError."""
    plan = load_plan(folder.plan)
    since, until = iteration.since, iteration.until
    schema = load_bundle(only_bundle(plan)).manifest.schema_
    try:
        reader = PredictionLogReader(settings.log, schema, "count", since=since, until=until)
        splitter = fit_splitter(reader, schema)
        found = measure({SERVING: plan}, settings.log, since, until)
    except DataError as e:
        return StepResult(verdict="wait", reason=str(e), rows="kept")
    best = found.best(SERVING)
    now, expected = found.interval(best), found.expected[best]
    reference = _reference(folder, plan, iteration.serving)
    learned = None if splitter.cuts is None else reader.time_of(splitter.cuts[1] + 1)
    figures = {
        "information": _ends(now),
        "reference": reference,
        "rows": found.rows,
        "requests": found.requests,
        "clicks": found.clicks,
        "expected_clicks": round(expected, 1),
        "learned_until": None if learned is None else learned.isoformat(),
    }

    def result(verdict: Verdict, reason: str, rows: Rows = "left out") -> StepResult:
        return StepResult(verdict=verdict, reason=reason, rows=rows, figures=figures)

    factor = settings.max_calibration
    if expected >= settings.least_clicks and not 1 / factor <= found.clicks / expected <= factor:
        return result(
            "hold",
            f"{found.clicks:,} clicks in the newest rows where the serving model expects {expected:,.0f}: "
            "labels are missing or wrong, or behavior changed",
        )
    if found.clicks < settings.least_clicks:
        return result(
            "wait", f"{found.clicks:,} of {settings.least_clicks:,} clicks in the newest rows so far", "kept"
        )
    at = f"information gain {now.value:.4f} [{now.low:.4f}, {now.high:.4f}] of the serving model on new rows"
    if reference is None or reference <= 0:
        return result("go", f"{at}; nothing to compare it with")
    if not now.high >= (1 - settings.max_drop) * reference:
        return result("hold", f"{at}, {reference:.4f} before: labels are wrong, or behavior changed suddenly")
    if settings.drift is not None and reference - now.value < settings.drift:
        return result("wait", f"{at}, {reference:.4f} before: it lost less than {settings.drift:g}", "kept")
    return result("go", f"{at}, {reference:.4f} before")


def _reference(folder: LoopFolder, plan: Plan, serving: str) -> float | None:
    """Returns the information gain of the serving plan's best path when first measured; None if unknown."""
    learned = [i for i in folder.iterations() if i.figures("train").get("version") == serving]
    if learned and (evaluated := learned[-1].figures("evaluate")):
        # None if an operator forced an iteration whose newest rows have one label
        value: float | None = evaluated["information"][0]
        return value
    bundle = load_bundle(only_bundle(plan))
    found = [bundle.at_width(path.width).test_metrics.get("information") for path in plan.paths]
    return max((value for value in found if value is not None), default=None)


def train(
    iteration: Iteration, folder: LoopFolder, settings: LoopSettings, is_dropped: Callable[[], bool]
) -> StepResult:
    """Continues the serving bundle with the rows of the period. Raises LoopError or IterationDropped.

    is_dropped: returns whether an operator dropped the iteration.
    """
    own = folder.folder_of(iteration.number)
    out, serving = own / BUNDLE, only_bundle(load_plan(folder.plan))
    bundle = _trained(out, iteration)
    if bundle is None:
        period = ["--until", iteration.until]
        if iteration.since is not None:
            period += ["--since", iteration.since]
        files = ["--data", settings.log, "--from", serving, "--out", out, "--checkpoint", own / CHECKPOINT]
        command = [sys.executable, "-m", "polyrec", "train", *map(str, files), *period, "--replace"]
        _execute([*command, "--on-malformed", "count", *settings.train_options], own / TRAIN_LOG, is_dropped)
        bundle = load_bundle(out)
    record = bundle.manifest.training["from"]["tables"]
    new = sum(table["new"] for table in record.values())
    gone = sum(table["forgotten"] for table in record.values())
    return StepResult(
        verdict="go",
        reason=f"version {bundle.manifest.version}: {new:,} new ids, {gone:,} forgotten",
        figures={"version": bundle.manifest.version, "new_ids": new, "forgotten_ids": gone},
    )


def _trained(out: Path, iteration: Iteration) -> Bundle | None:
    """Returns the bundle if training finished before the loop was killed; else None."""
    try:
        bundle = load_bundle(out)
    except BundleError:
        return None
    return bundle if bundle.manifest.training.get("from", {}).get("version") == iteration.serving else None


def _execute(command: list[str], log: Path, is_dropped: Callable[[], bool]) -> None:
    """Runs a command at low priority, with its output in a file. Raises LoopError or IterationDropped."""
    with log.open("a", encoding="utf-8") as output:
        print("$", " ".join(command), file=output, flush=True)
        with subprocess.Popen(command, stdout=output, stderr=output) as process:
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
            try:
                while process.poll() is None:
                    if is_dropped():
                        raise IterationDropped("ended by an operator")
                    time.sleep(POLL_S)
            finally:
                if process.poll() is None:
                    process.terminate()
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise LoopError(f"training ended with status {process.returncode}: {lines[-1]} ('{log}')")


def evaluate(iteration: Iteration, folder: LoopFolder, settings: LoopSettings) -> StepResult:
    """Compares every path of the new bundle with the same path of the serving one. Raises PolyrecError."""
    serving = load_plan(folder.plan)
    new = with_bundle(serving, folder.folder_of(iteration.number) / BUNDLE)
    found = measure(
        {SERVING: serving, NEW: new}, settings.log, iteration.since, iteration.until, serving.metric
    )
    by_path = {p.name: found.interval((NEW, p.name), less=(SERVING, p.name)) for p in serving.paths}
    best, before = found.interval(found.best(NEW)), found.interval(found.best(SERVING))
    figures = {
        "information": _ends(best),
        "serving": _ends(before),
        "differences": {name: _ends(i) for name, i in by_path.items()},
        "rows": found.rows,
        "requests": found.requests,
        "clicks": found.clicks,
        "plan": _measured_plan(new, found).model_dump(mode="json", exclude_none=True),
    }
    name, worst = min(by_path.items(), key=lambda item: np.nan_to_num(item[1].low, nan=-np.inf))
    summary = f"information gain {best.value:.4f}, the serving model's {before.value:.4f}; {name} "
    summary += f"{worst.value:+.4f} [{worst.low:+.4f}, {worst.high:+.4f}]"
    # reject even a loss within the margin, since small losses of many iterations would add up
    if any(i.high < 0 for i in by_path.values()):
        # far fewer than came: labels are missing in the rows that it was trained on
        expected = found.expected[found.best(NEW)]
        summary += f"; it expects {expected:,.0f} clicks where there are {found.clicks:,}"
        return StepResult(verdict="hold", reason=f"worse: {summary}", figures=figures)
    if worst.low >= -settings.margin:
        return StepResult(verdict="go", reason=summary, figures=figures)
    summary = f"not shown to be at most {settings.margin:g} worse: {summary}"
    return StepResult(verdict="hold", reason=summary, rows="kept", figures=figures)


def with_bundle(plan: Plan, bundle: Path) -> Plan:
    """Returns the plan with another bundle in every path."""
    paths = tuple(path.model_copy(update={"bundle": bundle}) for path in plan.paths)
    return plan.model_copy(update={"paths": paths})


def _measured_plan(plan: Plan, found: Measured) -> Plan:
    """Returns the plan with the measured qualities, and without anything planned from earlier rows."""
    paths = []
    for path in plan.paths:
        quality = found.interval((NEW, path.name), plan.metric).value
        accuracy = found.interval((NEW, path.name), "accuracy").value
        values = {"quality": quality, "accuracy": accuracy}
        paths.append(path.model_copy(update={k: v if math.isfinite(v) else None for k, v in values.items()}))
    changes = {
        "version": 3,
        "paths": tuple(paths),
        "differences": found.differences(NEW, plan.metric),
        "expected": None,
        "placement": None,
    }
    return plan.model_copy(update=changes)


def publish(iteration: Iteration, folder: LoopFolder) -> StepResult:
    """Writes the plan of the new bundle beside it. Raises OSError."""
    plan = Plan.model_validate(iteration.figures("evaluate")["plan"])
    file = folder.folder_of(iteration.number) / PLAN
    save_plan(with_bundle(plan, Path(BUNDLE)), file)
    load_plan(file)
    return StepResult(verdict="go", reason=f"written to '{file}'", figures={"plan": str(file)})


def adopt(iteration: Iteration, folder: LoopFolder, keep: int) -> None:
    """Makes an iteration's plan the serving one; removes earlier bundles except the last `keep`."""
    own = folder.folder_of(iteration.number)
    plan = load_plan(own / PLAN)
    save_plan(with_bundle(plan, (own / BUNDLE).relative_to(folder.path)), folder.plan)
    earlier = [i.number for i in folder.iterations() if i.state in LEARNED and i.number != iteration.number]
    folder.remove_bundles({*earlier[max(0, len(earlier) - keep) :], iteration.number})


def _ends(interval: Interval) -> list[float | None]:
    """Returns a value and the ends of its interval, JSON-serializable."""
    ends = (interval.value, interval.low, interval.high)
    return [round(end, 6) if math.isfinite(end) else None for end in ends]
