"""The server's side of live quality: starts the judge, reads reports, adjusts the router's values."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from polyrec.models.errors import PolyrecError
from polyrec.planner.live_quality import Range, following_values, reference_path
from polyrec.server.app.background import repeat
from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.clock import clock
from polyrec.server.live_quality.report import Ends, Report, read_report, report_file
from polyrec.server.live_quality.settings import JudgedCanary, JudgedPath, JudgeSettings, LiveQualitySettings
from polyrec.server.metrics.metrics import Metrics
from polyrec.server.prediction_log.settings import PredictionLogSettings
from polyrec.server.record_pipe import RecordPipe, framed

log = logging.getLogger("polyrec.live_quality")

POLL_S = 2.0
"""Interval at which the report is read, and a heartbeat is sent to the judge."""
RESTART_S = 60.0
"""Minimum time between the start of a judge and the start of its replacement, if it exits."""
STALE_ROUNDS = 5
STALE_S = 3600.0
"""A report older than this and than STALE_ROUNDS rounds is ignored, and offline values are used again.

A round takes long on busy cores.
"""


class LiveQualityError(PolyrecError):
    """Raised if live quality cannot be measured with this log or plan."""


class LiveQuality:
    """Live quality of one model. Used from one thread, except for `adopt`.

    serving: the first generation. Raises LiveQualityError if it cannot be judged or the log lacks features.
    """

    def __init__(
        self,
        settings: LiveQualitySettings,
        prediction_log: PredictionLogSettings,
        metrics: Metrics,
        serving: Serving,
    ) -> None:
        if prediction_log.leave_out or prediction_log.hash:
            raise LiveQualityError(
                "live quality scores logged requests again: leave out --prediction-log-hash and "
                "--prediction-log-leave-out, or --live-quality"
            )
        self._settings = settings
        self._check(serving)
        self._folder = prediction_log.folder.resolve()
        self._settle_s = 2 * prediction_log.flush_s + 5
        self._metrics = metrics
        self._serving: Serving | None = None
        self._judged: JudgeSettings | None = None
        self._file = self._file_before = Path()
        self._canary: JudgedCanary | None = None
        self._values: dict[str, float] = {}
        self.report: Report | None = None
        """The last report on the served paths, unless it is stale; None before the first one."""
        self.pipe: RecordPipe | None = None
        self._started_s = 0.0
        self._watching: asyncio.Task[None] | None = None

    def adopt(self, serving: Serving) -> None:
        """Judges a new generation from now on; logs an error if it cannot be judged."""
        self._serving, self._judged, self.report = serving, None, None
        self._canary = None
        self._metrics.live.clear()
        self._values = _path_values(serving)
        try:
            self._check(serving)
        except LiveQualityError as e:
            log.error("live quality is not measured: %s", e)
            return
        self._judged = self.judged_of(serving)
        self._file = self._file_before = report_file(self._folder, self._judged.digest)
        if self.pipe is not None and self.pipe.alive:
            self._send_settings()
        else:
            self._start()

    def try_version(self, canary: Serving | None) -> None:
        """Judges a canary beside the served paths until the next call; None stops it.

        Its most valuable path is scored, on requests answered after its bundle was made.
        """
        if self._judged is None or self._serving is None:
            return
        self._canary = None
        if canary is not None and not canary.plan.in_tiers:
            values = _path_values(canary)
            best = reference_path(values)
            path = next(path for path in canary.paths if path.name == best)
            self._canary = JudgedCanary(path=_judged(path), since_s=_made_s(path))
        self._judged = self.judged_of(self._serving)
        # the report before says the same of the paths, until there is one with the canary
        self._file_before, self._file = self._file, report_file(self._folder, self._judged.digest)
        if self.pipe is not None and self.pipe.alive:
            self._send_settings()

    def canary(self, version: str) -> Ends | None:
        """Returns the information gain of a canary minus that of the best served path.

        Includes the interval that holds whichever single client's labels are left out. None if unknown.
        """
        found = None if self.report is None else self.report.trial
        return None if found is None or found.version != version else found.confirmed

    def document(self) -> dict[str, Any] | None:
        """Returns the last report and the changes of values, for the status page; None without a report."""
        if self.report is None:
            return None
        by = {name: value - self._values[name] for name, value in self._base_values().items()}
        return self.report.model_dump() | {"value_changes": by}

    def judged_of(self, serving: Serving) -> JudgeSettings:
        """Returns the judge's settings for a generation of the plan."""
        values = _path_values(serving)
        return JudgeSettings(
            folder=self._folder,
            paths=tuple(map(_judged, serving.paths)),
            reference=reference_path(values),
            span_s=self._settings.span_s,
            every_s=self._settings.every_s,
            settle_s=self._settle_s,
            trusted=self._settings.trusted,
            canary=self._canary,
        )

    def watch(self, name: str) -> None:
        """Polls on the running loop from now on, until `close`. name: the model's, for the log."""
        if self._watching is not None:
            return
        self._watching = repeat(self.poll, POLL_S, f"live quality of '{name}'")

    async def poll(self) -> None:
        """Reads the report, and sets metrics and values."""
        judged = self._judged
        if judged is None:
            return
        if self.pipe is not None:
            self.pipe.send(framed(b""))
        dead = self.pipe is None or not self.pipe.alive
        if dead and time.monotonic() - self._started_s >= RESTART_S:
            self._start()
        # the log's disk may be slow
        files = self._file, self._file_before
        report = await asyncio.to_thread(lambda: read_report(files[0]) or read_report(files[1]))
        if self._judged is not judged:
            return
        if report is not None:
            age_s = time.time() - report.at_s
            self._metrics.live.age(age_s)
            if age_s > max(STALE_S, STALE_ROUNDS * self._settings.every_s):
                report = None
        if report != self.report:
            self.report = report
            self._metrics.live.show(report)
        if self._settings.mode == "follow":
            self._follow()

    def close(self) -> None:
        """Ends polling, which would restart the judge, and kills the judge, which has no state to save."""
        if self._watching is not None:
            self._watching.cancel()
        if self.pipe is not None:
            self.pipe.kill()

    def _follow(self) -> None:
        """Moves the router's values into confirmed ranges, or back to the offline values without a report."""
        assert self._serving is not None
        ranges: dict[str, Range] = {}
        if self.report is not None:
            confirmed = {name: path.confirmed for name, path in self.report.paths.items()}
            ranges = {name: (c[1], c[2]) for name, c in confirmed.items() if c is not None}
        values = following_values(self._values, ranges, self._settings.bound)
        before = self._base_values()
        moved = [name for name, value in values.items() if abs(value - before[name]) > 1e-9]
        if not moved:
            return
        self._serving.dispatcher.router.set_base_values(values)
        changes = ", ".join(f"{name} {before[name]:.4f} -> {values[name]:.4f}" for name in moved)
        log.warning("values follow live quality: %s", changes)
        self._metrics.events.add(clock(), "routing", f"values follow live quality: {changes}")
        for name, value in values.items():
            self._metrics.live.set_value_change(name, value - self._values[name])

    def _base_values(self) -> dict[str, float]:
        """Returns the router's current value of an answered row by path."""
        assert self._serving is not None
        return {path.name: path.base_value for path in self._serving.dispatcher.router.state.paths}

    def _check(self, serving: Serving) -> None:
        """Raises LiveQualityError if a generation cannot be judged."""
        if serving.plan.in_tiers:
            raise LiveQualityError(
                "live quality needs bundles that fit into memory: rows in tiers are not scored again"
            )
        metric = serving.plan.metric
        if self._settings.mode == "follow" and metric != "information":
            raise LiveQualityError(
                f"values follow information gain, not the plan's {metric}: use --live-quality measure"
            )

    def _send_settings(self) -> None:
        assert self.pipe is not None
        assert self._judged is not None
        self.pipe.send(framed(self._judged.model_dump_json().encode()))

    def _start(self) -> None:
        self._started_s = time.monotonic()
        if self.pipe is not None:
            self.pipe.kill()
        try:
            self.pipe = RecordPipe(
                "polyrec.server.live_quality.process",
                "judge of live quality",
                "settings of it",
                log,
                # parallelism would take cores from lanes
                os.environ | {"OMP_NUM_THREADS": "1"},
                arguments=[self._settings.priority],
            )
        except OSError as e:  # no process or descriptor is left; a later poll tries again
            log.error("the judge of live quality cannot be started: %s", e.strerror)
            return
        self._send_settings()


def _path_values(serving: Serving) -> dict[str, float]:
    """Returns the value of each path, as its router got it."""
    return {path.name: path.base_value for path in serving.dispatcher.router.state.path_specs}


def _made_s(path: OpenPath) -> float:
    """Returns when the bundle of a path was made, as Unix time; now if its manifest does not state it."""
    try:
        return datetime.fromisoformat(path.bundle.manifest.created).timestamp()
    except ValueError:
        return time.time()


def _judged(path: OpenPath) -> JudgedPath:
    """Describes a path for the judge, which opens it on the CPU: a GPU's path by torch, others as planned."""
    planned = path.planned
    on_cpu = planned.device == "cpu"
    return JudgedPath(
        name=path.name,
        bundle=planned.bundle.resolve(),
        version=path.bundle.manifest.version,
        runtime=planned.runtime if on_cpu else "torch",
        precision=planned.precision,
        width=planned.width,
    )
