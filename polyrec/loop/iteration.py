"""Defines one iteration of the loop: a pure state machine over a record stored as JSON.

    check -> train -> evaluate -> publish -> canary -> promoted       (without a server: publish -> published)
      |                  |                     |
    waiting, held      held               rolled back                 drop: dropped, at any step

A step's result decides whether the iteration continues. The record names the next step, at which a killed
loop resumes. This module reads no clock and no file.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict

Step = Literal["check", "train", "evaluate", "publish", "canary"]
STEPS: tuple[Step, ...] = ("check", "train", "evaluate", "publish", "canary")
Verdict = Literal["go", "wait", "hold", "roll_back"]
State = Literal["running", "waiting", "held", "rolled_back", "dropped", "published", "promoted"]
Rows = Literal["left out", "kept"]
LEARNED: tuple[State, ...] = ("published", "promoted")
"""States of iterations whose bundle serves, or will."""
FORCED: tuple[State, ...] = ("waiting", "held", "rolled_back")
"""States from which an operator can force an iteration to continue."""
STATES: dict[Verdict, State] = {"wait": "waiting", "hold": "held", "roll_back": "rolled_back"}


class LoopError(PolyrecError):
    """Raised when the loop cannot continue or cannot execute a command."""


class StepResult(Strict):
    """The result of a step.

    reason: text with its numbers.
    rows: if the iteration ends here, whether the next one trains on its rows or leaves them out.
    figures: JSON-serializable.
    """

    verdict: Verdict
    reason: str
    rows: Rows = "left out"
    figures: dict[str, Any] = Field(default_factory=dict)


class DoneStep(Strict):
    """A completed step. began, ended: Unix time."""

    step: Step
    began: float
    ended: float
    result: StepResult


class Iteration(Strict):
    """The record of an iteration.

    began, step_began: Unix time.
    since, until: period of the logged answers that it uses; null since: from the beginning of the log.
    serving: version of the serving bundle.
    step: the next step, or the one at which it ended.
    forced: steps after which an operator forced it to continue.
    error: error of the last attempt at the step, which is retried, or why the iteration was dropped.
    attempts: number of failed attempts.
    rows: if it was dropped, whether the next one uses its rows or leaves them out.
    """

    format: Literal["polyrec-loop-1"] = "polyrec-loop-1"
    number: int
    began: float
    since: str | None
    until: str
    serving: str
    state: State = "running"
    step: Step = "check"
    step_began: float
    done: tuple[DoneStep, ...] = ()
    forced: tuple[Step, ...] = ()
    error: str | None = None
    attempts: int = 0
    rows: Rows = "left out"

    def figures(self, step: Step) -> dict[str, Any]:
        """Returns the figures of the last execution of a step; empty if there was none."""
        found = [done.result.figures for done in self.done if done.step == step]
        return found[-1] if found else {}

    @property
    def reason(self) -> str:
        """The last step's reason, or its error."""
        return self.error or (self.done[-1].result.reason if self.done else "")

    @property
    def next_since(self) -> str | None:
        """The time from which the next iteration takes rows.

        After an iteration that trained, the newest rows, which it only measured, are used again.
        """
        if self.state in LEARNED:
            return self.figures("check").get("learned_until") or self.until
        if self.state == "dropped":
            return self.since if self.rows == "kept" else self.until
        kept = self.state == "waiting" or (self.done and self.done[-1].result.rows == "kept")
        return self.since if kept else self.until

    def belongs_to(self, served: str) -> bool:
        """Whether the iteration can go on while the loop's plan has version `served`.

        That is the version it began with, or its own, if the loop was killed after it wrote the plan and
        before the record.
        """
        own = self.figures("train").get("version") if self.step in ("publish", "canary") else None
        return served in (self.serving, own)

    @property
    def next_number(self) -> int:
        """The number of the next iteration, which reuses that of an iteration that only waited."""
        return self.number if self.state == "waiting" else self.number + 1


def after(iteration: Iteration, result: StepResult, now: float, last: Step) -> Iteration:
    """Returns the iteration after a result of its step. last: the step that completes an iteration.

    Only "go" continues or completes it, also if it was forced: "promoted" says what the server serves.
    """
    step = iteration.step
    done = DoneStep(step=step, began=iteration.step_began, ended=now, result=result)
    changes: dict[str, Any] = {"done": (*iteration.done, done), "error": None, "attempts": 0}
    if result.verdict != "go":
        changes["state"] = STATES[result.verdict]
    elif step == last:
        changes["state"] = "promoted" if step == "canary" else "published"
    else:
        changes |= {"step": STEPS[STEPS.index(step) + 1], "step_began": now}
    return iteration.model_copy(update=changes)


def failed(iteration: Iteration, error: str) -> Iteration:
    """Returns the iteration after a failed attempt at its step, which will be retried."""
    return iteration.model_copy(update={"error": error, "attempts": iteration.attempts + 1})


def forced(iteration: Iteration, now: float) -> Iteration:
    """Returns a stopped iteration that an operator forces to continue.

    After a check or an evaluation it continues with the next step. A canary is tried again, and the server is
    told to promote it at once (polyrec/loop/canary.py).
    Raises LoopError.
    """
    if iteration.state not in FORCED:
        raise LoopError(
            f"iteration {iteration.number} is {iteration.state.replace('_', ' ')}: only one that waits, is "
            "held or was rolled back can be forced"
        )
    step = iteration.step
    following = step if step == "canary" else STEPS[STEPS.index(step) + 1]
    changes = {
        "state": "running",
        "step": following,
        "step_began": now,
        "forced": (*iteration.forced, step),
        "error": None,
        "attempts": 0,
    }
    return iteration.model_copy(update=changes)


def dropped(iteration: Iteration, reason: str = "ended by an operator", rows: Rows = "left out") -> Iteration:
    """Returns an iteration in progress after it was dropped. rows: what the next one does with its rows."""
    return iteration.model_copy(update={"state": "dropped", "error": reason, "rows": rows})
