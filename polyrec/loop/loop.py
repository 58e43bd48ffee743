"""Executes iterations: one step at a time, each recorded before the next begins.

`advance` does what is due and says how long nothing will be; between two calls the process can be killed. A
step is repeated if it was killed or failed: training goes on from its checkpoint, a canary is found again.
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
from polyrec.loop.steps import Dropped, LoopSettings
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.prediction_log import load_rules
from polyrec.models.errors import PolyrecError
from polyrec.planner.plan import load_plan, save_plan

FIRST_RETRY_S = 30.0
"""Pause after a step failed; it doubles with each attempt, up to the time between iterations."""


@dataclass(slots=True)
class Loop:
    """Iterations in a folder. Lock it before.

    every_s: from the beginning of an iteration to that of the next. settle_s: after the log's window, until
    its files are complete. since: of the first iteration; None: from the beginning of the log. canary: None:
    bundles are published for somebody else to serve. say: called with a line for people. clock: Unix time.
    """

    folder: LoopFolder
    settings: LoopSettings
    every_s: float
    settle_s: float = 60.0
    since: str | None = None
    canary: Canary | None = None
    say: Callable[[str], object] = lambda _line: None
    clock: Callable[[], float] = time.time
    _said: str = field(default="", init=False)

    def begin(self, plan: Path) -> None:
        """Takes a plan as the one that serves, unless an earlier loop here left one. Raises PolyrecError."""
        self.folder.create()
        if not self.folder.plan.exists():
            given = load_plan(plan)
            save_plan(steps.with_bundle(given, steps.only_bundle(given).resolve()), self.folder.plan)
        steps.only_bundle(load_plan(self.folder.plan))
        load_rules(self.settings.log)

    def advance(self, at_once: bool = False) -> float:
        """Executes the step that is due, if any; returns the seconds until there may be another.

        at_once: a new iteration begins before its time. Raises LoopError for a folder that cannot be read.
        """
        iteration = self._as_asked(self.folder.last())
        if iteration is None or iteration.state != "running":
            pause_s = 0.0 if iteration is None or at_once else iteration.began + self.every_s - self.clock()
            if pause_s > 0:
                return pause_s
            iteration = self._next(iteration)
        hold = self.folder.holds().get(iteration.step)
        if hold is not None:
            self._tell(f"iteration {iteration.number}: held before {iteration.step} by a person: {hold}")
            return self.every_s
        number = iteration.number
        try:
            result = self._executed(iteration)
        except Dropped:
            self._as_asked(iteration)
            return 0.0
        except PolyrecError as e:
            iteration = failed(iteration, str(e))
            self.folder.save(iteration)
            self._tell(f"iteration {number}: {iteration.step} failed, and is tried again: {e}")
            return float(min(self.every_s, FIRST_RETRY_S * 2 ** (iteration.attempts - 1)))
        step, iteration = iteration.step, after(iteration, result, self.clock(), self._last_step)
        if iteration.state in LEARNED:
            # before the record: a loop that is killed between them repeats the step, and this
            steps.adopt(iteration, self.folder, self.settings.keep)
        self.folder.save(iteration)
        self._tell(f"iteration {number}: {step}: {result.reason}")
        if iteration.state != "running":
            self._tell(f"iteration {number}: {iteration.state.replace('_', ' ')}")
        return 0.0

    @property
    def _last_step(self) -> Step:
        return "publish" if self.canary is None else "canary"

    def _as_asked(self, iteration: Iteration | None) -> Iteration | None:
        """Returns the iteration after what a person asked of it."""
        if iteration is None:
            return None
        number, was = iteration.number, iteration
        if self.folder.asked("force", number):
            self.folder.answered("force", number)
            try:
                iteration = forced(iteration, self.clock())
            except LoopError as e:
                self._tell(str(e))
            else:
                self._tell(f"iteration {number}: goes on with {iteration.step}, forced by a person")
        if self.folder.asked("drop", number):
            self.folder.answered("drop", number)
            if iteration.state == "running":
                iteration = dropped(iteration)
                self._tell(f"iteration {number}: dropped by a person")
        if iteration is not was:
            self.folder.save(iteration)
        return iteration

    def _next(self, last: Iteration | None) -> Iteration:
        """Begins the next iteration, of the rows whose labels are final."""
        now = self.clock()
        until_s = now - load_rules(self.settings.log).window_s - self.settle_s
        iteration = Iteration(
            number=1 if last is None else last.next_number,
            began=now,
            since=self.since if last is None else last.next_since,
            until=datetime.fromtimestamp(until_s, UTC).isoformat(timespec="seconds"),
            serving=load_bundle(steps.only_bundle(load_plan(self.folder.plan))).manifest.version,
            step_began=now,
        )
        self.folder.save(iteration)
        return iteration

    def _executed(self, iteration: Iteration) -> StepResult:
        def ended() -> bool:
            return self.folder.asked("drop", iteration.number)

        folder, settings = self.folder, self.settings
        if iteration.step == "check":
            return steps.check(iteration, folder, settings)
        if iteration.step == "train":
            return steps.train(iteration, folder, settings, ended)
        if iteration.step == "evaluate":
            return steps.evaluate(iteration, folder, settings)
        if iteration.step == "publish":
            return steps.publish(iteration, folder)
        if self.canary is None:
            raise LoopError("the iteration is at its canary, and no server is given: say --url URL")
        return self.canary.execute(iteration, folder, ended)

    def _tell(self, line: str) -> None:
        """Says a line unless it was the last one, on the server's status page too."""
        if line == self._said:
            return
        self._said = line
        self.say(line)
        if self.canary is not None:
            self.canary.note(f"loop: {line}")
