"""Implements the canary step: tries the new plan on a share of a server's requests.

The server compares both versions, and promotes the new one or rolls it back (server/rollout/). This step
starts the rollout and follows it. If the loop was killed, it finds the rollout again by the version of its
bundle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from polyrec.client.admin import AdminCalls, AdminFailed
from polyrec.loop.folder import PLAN, LoopFolder
from polyrec.loop.iteration import Iteration, LoopError, StepResult
from polyrec.loop.steps import IterationDropped

POLL_S = 1.0
NOTE_S, MAX_NOTE = 10.0, 500
"""Longest wait for a note's call, and maximum characters of a note."""


@dataclass(frozen=True, slots=True)
class Canary:
    """Tries new plans on a server.

    start: body of a rollout's start, except for the plan (server/rollout/documents.py).
    max_s: maximum age of a rollout that is not promoted, by the server's monotonic clock; after that, the
        plan is rolled back.
    """

    calls: AdminCalls
    start: Mapping[str, Any]
    max_s: float

    def note(self, line: str) -> None:
        """Adds a line to the server's status page; ignored if the server does not answer."""
        with suppress(AdminFailed):
            self.calls.post("note", {"text": line[:MAX_NOTE]}, NOTE_S)

    def take_back(self, iteration: Iteration, reason: str) -> None:
        """Rolls back the rollout of an iteration's plan if it is in progress. Raises AdminFailed."""
        rollout = self.calls.get("rollout")["rollout"]
        if rollout is not None and rollout["canary_version"] == _version(iteration):
            self.calls.post("rollout/rollback", {"reason": reason})

    def execute(self, iteration: Iteration, folder: LoopFolder, is_dropped: Callable[[], bool]) -> StepResult:
        """Tries an iteration's plan. Raises AdminFailed, LoopError or IterationDropped.

        is_dropped: returns whether an operator dropped the iteration; it is then rolled back.
        """
        version = _version(iteration)
        self.calls.require_one_model()  # the server may have come up since the loop began
        status = self.calls.get("rollout")
        if status["rollout"] is None:
            earlier = _ended(status, version)
            if earlier is not None and earlier["began"] >= iteration.step_began:
                return _result(earlier)
            if is_dropped():
                raise IterationDropped("ended by an operator")
            plan = folder.folder_of(iteration.number) / PLAN
            status = self.calls.post("rollout/start", {"plan": str(plan.resolve()), **self.start})
        rollout = status["rollout"]
        if rollout["canary_version"] != version:
            if is_dropped():
                raise IterationDropped("ended by an operator; another rollout is in progress")
            raise LoopError(f"another rollout is in progress, of version {rollout['canary_version']}")
        stable = rollout["stable_version"]
        if stable != iteration.serving:
            self.calls.post("rollout/rollback", {"reason": "the loop expects another serving version"})
            if stable == version:
                return StepResult(verdict="go", reason="the server serves it already")
            reason = f"the server serves version {stable}, the loop's plan has version {iteration.serving}"
            return StepResult(verdict="hold", reason=reason, rows="kept")
        return self._follow(iteration, version, is_dropped)

    def _follow(self, iteration: Iteration, version: str, is_dropped: Callable[[], bool]) -> StepResult:
        """Waits for the rollout in progress to end, and returns its result."""
        if "canary" in iteration.forced:
            self.calls.post("rollout/promote", {"reason": "forced by an operator"})
        while (rollout := (status := self.calls.get("rollout"))["rollout"]) is not None:
            if rollout["canary_version"] != version:
                break  # an operator ended it and started another
            if is_dropped():
                self.calls.post("rollout/rollback", {"reason": "the loop's iteration was dropped"})
                raise IterationDropped("ended by an operator; the canary was rolled back")
            if rollout["age_s"] > self.max_s:
                decision = rollout["decision"]
                missing = decision["reason"] if decision else "no decision"
                reason = f"not promoted within {self.max_s:g} s: {missing}"
                self.calls.post("rollout/rollback", {"reason": reason[:200]})
                continue
            time.sleep(POLL_S)
        found = _ended(status, version)
        if found is None:
            raise LoopError(f"the server no longer knows of the rollout of version {version}")
        return _result(found)


def _version(iteration: Iteration) -> str:
    """Returns the version of the bundle that an iteration trained."""
    return str(iteration.figures("train")["version"])


def _ended(status: Mapping[str, Any], version: str) -> dict[str, Any] | None:
    """Returns the last ended rollout of a version; None if there is none."""
    return next((e for e in status["ended"] if e["canary_version"] == version), None)


def _result(ended: Mapping[str, Any]) -> StepResult:
    decision = ended["decision"] or {}
    outcome = ended["outcome"].replace("_", " ")
    return StepResult(
        verdict="go" if ended["outcome"] == "promoted" else "roll_back",
        reason=f"{outcome} after {ended['lasted_s']:.0f} s: {ended['reason']}",
        figures=dict(decision.get("figures", {})),
    )
