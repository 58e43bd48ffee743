"""Executes iterations, one step at a time, each recorded before the next begins.

`advance` executes the step that is due and returns the time until the next one. The process can be killed at
any time; a step that was killed or failed is repeated: training resumes from its checkpoint, a canary is
found again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from polyrec.loop import steps
from polyrec.loop.canary import Canary
from polyrec.loop.folder import LoopFolder
from polyrec.loop.iteration import (
    LEARNED,
    Iteration,
    LoopError,
    Step,
    StepResult,
    after,
    dropped,
    failed,
    forced,
)
from polyrec.loop.steps import IterationDropped, LoopSettings
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.bundle.manifest import read_manifest
from polyrec.models.data.prediction_log.log_format import load_rules
from polyrec.models.data.reader import utc_time
from polyrec.models.errors import PolyrecError
from polyrec.models.training.warm.start import WarmStart
from polyrec.planner.plan import load_plan, save_plan

FIRST_RETRY_S = 30.0
"""Pause after a step failed; it doubles with each attempt, up to the time between iterations."""


@dataclass(slots=True)
class Loop:
    """Executes the iterations of a folder that the caller has locked.

    every_s: time between the beginnings of two iterations.
    settle_s: time after the log's window until its files are complete.
    since: start of the first iteration's rows; None: the beginning of the log.
    canary: None if plans are only published.
    report: called with each line for operators. clock: returns Unix time.
    """

    folder: LoopFolder
    settings: LoopSettings
    every_s: float
    settle_s: float = 60.0
    since: str | None = None
    canary: Canary | None = None
    report: Callable[[str], object] = lambda _line: None
    clock: Callable[[], float] = time.time
    _last_line: str = field(default="", init=False)

    def begin(self, plan: Path) -> None:
        """Makes a plan the serving one, unless the folder already has one. Raises PolyrecError."""
        self.folder.create()
        if not self.folder.plan.exists():
            given = load_plan(plan)
            bundle = steps.only_bundle(given).resolve()
            WarmStart(load_bundle(bundle))  # else its first training would refuse it, hours later
            save_plan(steps.with_bundle(given, bundle), self.folder.plan)
        steps.only_bundle(load_plan(self.folder.plan))
        load_rules(self.settings.log)

    def advance(self, at_once: bool = False) -> float:
        """Executes the step that is due, if any; returns the seconds until the next one may be due.

        at_once: starts a new iteration before its time. Raises LoopError if the folder cannot be read.
        """
        iteration = self._after_commands(self.folder.last())
        if iteration is not None and iteration.state == "running" and (other := self._other_plan(iteration)):
            if iteration.step == "canary" and self.canary is not None:
                # else the server would promote it later, beside the other plan
                self.canary.take_back(iteration, other)
            iteration = dropped(iteration, other, "kept")
            self.folder.save(iteration)
            self._report(f"iteration {iteration.number}: dropped: {other}")
            at_once = True
        if iteration is None or iteration.state != "running":
            if iteration is not None and not at_once:
                age_s = self.clock() - iteration.began
                if 0 <= age_s < self.every_s:  # below 0 if the clock was set back, perhaps by years
                    return self.every_s - age_s
            iteration = self._next(iteration)
        hold = self.folder.holds().get(iteration.step)
        if hold is not None and not self.folder.has("drop", iteration.number):
            self._report(f"iteration {iteration.number}: held before {iteration.step} by an operator: {hold}")
            return self.every_s
        return self._attempt(iteration)

    def _attempt(self, iteration: Iteration) -> float:
        """Executes an iteration's step and records the outcome; returns the seconds until the next step."""
        number = iteration.number
        try:
            result = self._execute(iteration)
        except IterationDropped:
            self._drop(iteration)
            return 0.0
        except (PolyrecError, OSError) as e:
            iteration = failed(iteration, str(e))
            self.folder.save(iteration)
            self._report(f"iteration {number}: {iteration.step} failed and will be retried: {e}")
            return float(min(self.every_s, FIRST_RETRY_S * 2 ** (iteration.attempts - 1)))
        step, iteration = iteration.step, after(iteration, result, self.clock(), self._last_step)
        if iteration.state in LEARNED:
            # before the record: a loop killed between them repeats the step, and this
            steps.adopt(iteration, self.folder, self.settings.keep)
        self.folder.save(iteration)
        self._report(f"iteration {number}: {step}: {result.reason}")
        if iteration.state != "running":
            self._report(f"iteration {number}: {iteration.state.replace('_', ' ')}")
        return 0.0

    def advance_or_wait(self) -> float:
        """Like `advance`, but reports errors, as of a full disk, and returns the seconds until a retry.

        A step whose record could not be written is repeated then.
        """
        try:
            return self.advance()
        except OSError as e:
            self._report(f"'{self.folder.path}' cannot be used and will be tried again: {e.strerror or e}")
        except PolyrecError as e:
            self._report(f"failed and will be retried: {e}")
        return min(self.every_s, FIRST_RETRY_S)

    @property
    def _last_step(self) -> Step:
        return "publish" if self.canary is None else "canary"

    def _after_commands(self, iteration: Iteration | None) -> Iteration | None:
        """Returns the iteration after applying the operator's commands for it."""
        if iteration is None:
            return None
        number = iteration.number
        if self.folder.has("force", number):
            try:
                iteration = forced(iteration, self.clock())
            except LoopError as e:
                self._report(str(e))
            else:
                self.folder.save(iteration)
                self._report(f"iteration {number}: continues with {iteration.step}, forced by an operator")
            self.folder.remove("force", number)
        if self.folder.has("drop", number):
            if iteration.state != "running":
                self.folder.remove("drop", number)
            # the canary step ends what the server may be trying, and fails without an answer from it
            elif iteration.step != "canary" or self.canary is None:
                iteration = self._drop(iteration)
        return iteration

    def _drop(self, iteration: Iteration) -> Iteration:
        """Returns the iteration after an operator's command to drop it."""
        iteration = dropped(iteration)
        self.folder.save(iteration)
        self.folder.remove("drop", iteration.number)
        self._report(f"iteration {iteration.number}: dropped by an operator")
        return iteration

    def _served_version(self) -> str:
        """Returns the version of the loop's plan. Raises PolyrecError."""
        return read_manifest(steps.only_bundle(load_plan(self.folder.plan))).version

    def _other_plan(self, iteration: Iteration) -> str | None:
        """Returns why an iteration cannot go on if an operator gave the loop another plan since it began.

        Its bundle continues the earlier plan's, and would be compared with another model.
        """
        try:
            served = self._served_version()
        except PolyrecError:
            return None  # the step that needs the plan fails with this error, and is retried
        if iteration.belongs_to(served):
            return None
        return f"it began with version {iteration.serving}, the loop's plan now has version {served}"

    def _next(self, last: Iteration | None) -> Iteration:
        """Begins the next iteration, with the rows whose labels are final."""
        now = self.clock()
        until_s = now - load_rules(self.settings.log).window_s - self.settle_s
        until = datetime.fromtimestamp(until_s, UTC)
        since = self.since if last is None else last.next_since
        if last is not None and now < last.began and since is not None and utc_time(since) > until:
            # else it would wait for rows until the clock reaches that time again
            self._report(f"the clock was set back: rows from {until:%Y-%m-%d %H:%M:%S} UTC on are used")
            since = until.isoformat(timespec="seconds")
        iteration = Iteration(
            number=1 if last is None else last.next_number,
            began=now,
            since=since,
            until=until.isoformat(timespec="seconds"),
            serving=self._served_version(),
            step_began=now,
        )
        self.folder.save(iteration)
        return iteration

    def _execute(self, iteration: Iteration) -> StepResult:
        def is_dropped() -> bool:
            return self.folder.has("drop", iteration.number)

        folder, settings = self.folder, self.settings
        if iteration.step == "check":
            return steps.check(iteration, folder, settings)
        if iteration.step == "train":
            return steps.train(iteration, folder, settings, is_dropped)
        if iteration.step == "evaluate":
            return steps.evaluate(iteration, folder, settings)
        if iteration.step == "publish":
            return steps.publish(iteration, folder)
        if self.canary is None:
            raise LoopError("the iteration needs a server for its canary: add --url URL")
        return self.canary.execute(iteration, folder, is_dropped)

    def _report(self, line: str) -> None:
        """Reports a line, also on the server's status page, unless it repeats the last one."""
        if line == self._last_line:
            return
        self._last_line = line
        self.report(line)
        if self.canary is not None:
            self.canary.note(f"loop: {line}")
