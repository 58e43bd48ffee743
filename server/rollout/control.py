"""Starts, watches and ends the rollouts of one model.

    start     opens the canary beside the stable version and sends it some of the requests
    watch     compares both arms every second, and rolls back or promotes (planner/rollout/decision.py)
    rollback  sends all requests to the stable version again, starting with the next one
    promote   opens the canary once more, with its planned lanes, and serves it as a reload does

routes.py exposes these as admin calls. The stable version keeps its lanes, queue and router throughout, and
answers requests that the canary fails to answer (server/http/call.py). If the comparison itself fails, the
rollout is rolled back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import PolyrecError
from polyrec.models.schema.shared_ids import same_ids
from polyrec.models.text import public
from polyrec.planner.plan import Plan
from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.planner.rollout.canary_plan import canary_plan
from polyrec.planner.rollout.comparison import Comparison
from polyrec.planner.rollout.decision import RolloutBounds, RolloutDecision, decide, min_budget_s
from polyrec.planner.rollout.patience import Patience
from polyrec.planner.rollout.split import Split
from polyrec.server.app.background import run_in_thread
from polyrec.server.app.engine import Engine
from polyrec.server.app.opening import load_bundles
from polyrec.server.app.serving import Serving, differences
from polyrec.server.clock import clock
from polyrec.server.errors import Conflict, Invalid, NotReady, RequestError
from polyrec.server.http.admin import Admin
from polyrec.server.rollout.documents import (
    EndedRollout,
    EndRequest,
    RolloutDocument,
    RolloutOutcome,
    RolloutStatus,
    ShareRequest,
    StartRequest,
)
from polyrec.server.rollout.lane_waits import LaneWaits
from polyrec.server.rollout.shadow import Shadow
from polyrec.server.rollout.traffic import Arm, RolloutTraffic, value_reader
from polyrec.server.source.model_source import LoadedPlan

log = logging.getLogger("polyrec.rollout")

TICK_S = 1.0
LOGGED_TICKS = 10
"""Every LOGGED_TICKS-th decision to continue is logged."""
ENDED_KEPT = 10
"""Number of ended rollouts listed in the status."""
Opened = TypeVar("Opened")
NO_ROLLOUT = (
    "there is no rollout of model '{model}'; start one: polyrec rollout start PLAN. "
    "polyrec rollout rollback --previous returns to the plan before the last promotion or reload"
)


@dataclass(slots=True, eq=False)
class Rollout:
    """A rollout in progress.

    plan: the plan that a promotion would serve.
    began_s, began: time of the start, on `clock` and as Unix time.
    """

    traffic: RolloutTraffic
    plan: Plan
    bundles: Mapping[Path, Bundle]
    source: str
    by: str | None
    bounds: RolloutBounds
    began_s: float
    began: float
    state: Literal["running", "promoting"] = "running"
    comparison: Comparison = field(init=False)
    patience: Patience = field(init=False)
    ticks: int = 0

    def __post_init__(self) -> None:
        self.comparison = Comparison(paired=self.traffic.stable.shadow is not None)
        self.patience = Patience(self.began_s)


@dataclass(slots=True, eq=False)
class _Opening:
    """A version that is being opened for a rollout. called_off: why the rollout must not begin."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    called_off: str | None = None


class RolloutControl:
    """Runs the rollouts of one engine, one at a time. admin: provides the plan reader."""

    def __init__(self, engine: Engine, admin: Admin) -> None:
        self._engine = engine
        self._admin = admin
        self._rollout: Rollout | None = None
        self._opening: _Opening | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ended: deque[EndedRollout] = deque(maxlen=ENDED_KEPT)

    async def start(self, arguments: StartRequest) -> RolloutStatus:
        """Opens the canary and sends it its share of the requests. Raises Conflict, Invalid or NotReady."""
        engine = self._engine
        engine.check_no_rollout()
        stable = engine.serving
        by = arguments.by
        value_of = None if by is None else value_reader(by, stable.paths[0].encoder)
        read = self._admin.reader(arguments.plan)
        async with self._engine.changing():
            opening = self._opening = _Opening()
            try:
                plan, canary = await _open_in_thread(lambda: self._open(read))
            finally:
                self._opening = None
                opening.over.set()
            waits = LaneWaits(canary.lanes)
            shadow = None
            if arguments.shadow:
                shadow = Shadow(stable, canary, arguments.shadow, arguments.compare_per_s)
            traffic = RolloutTraffic(
                Arm(stable, False, engine.default_budget_s, shadow),
                Arm(canary, True, engine.default_budget_s, None, lambda: waits.sample(clock())),
                Split(arguments.share, canary.version),
                value_of,
                same_ids(stable.paths[0].encoder, canary.paths[0].encoder),
            )
            canary.dispatcher.attach()
            canary.dispatcher.share_loop(stable.dispatcher)
            rollout = Rollout(
                traffic=traffic,
                plan=plan,
                bundles=canary.loaded_plan.bundles,
                source=public(str(arguments.plan)),
                by=by,
                bounds=arguments.bounds,
                began_s=clock(),
                began=time.time(),
            )
            self._rollout, engine.rollout = rollout, traffic
            if engine.live_quality is not None:
                engine.live_quality.try_version(canary)
            if opening.called_off is not None:
                self._end(rollout, "rolled_back", opening.called_off)
                raise Conflict(f"the rollout was ended before it began: {opening.called_off}")
        what = "requests" if by is None else f"the values of {by}"
        self._announce(f"rollout began: version {canary.version} gets {arguments.share:g} of {what}")
        self._watching = asyncio.create_task(self._watch(rollout))
        return self.status()

    def status(self) -> RolloutStatus:
        """Returns the rollout in progress and the ended ones."""
        rollout = self._rollout
        return RolloutStatus(
            model=self._engine.name,
            rollout=None if rollout is None else _document(rollout),
            ended=list(reversed(self._ended)),
        )

    async def share(self, arguments: ShareRequest) -> RolloutStatus:
        """Changes the canary's share. Raises Conflict without a rollout, or NotReady."""
        rollout = self._current()
        rollout.traffic.split.share = arguments.share
        self._announce(f"rollout: version {rollout.traffic.canary.serving.version} gets {arguments.share:g}")
        return self.status()

    async def rollback(self, arguments: EndRequest) -> RolloutStatus:
        """Ends the rollout in favor of the stable version. Raises Conflict without a rollout, or NotReady.

        While its version is being opened, waits for that, and no request gets to the version.
        """
        if self._opening is not None:
            self._opening.called_off = public(arguments.reason)
            await self._opening.over.wait()
        else:
            self._end(self._current(), "rolled_back", public(arguments.reason))
        return self.status()

    async def promote(self, arguments: EndRequest) -> RolloutStatus:
        """Ends the rollout in favor of the canary. Raises Conflict, Invalid or NotReady."""
        await self._promote(self._current(), public(arguments.reason))
        return self.status()

    def judge(self) -> RolloutDecision:
        """Compares the arms now. Raises Conflict without a rollout, or NotReady."""
        rollout = self._current()
        traffic, now_s = rollout.traffic, clock()
        stable, canary = ArmRecords.joined(traffic.stable.take()), traffic.canary.take()
        shadow = traffic.stable.shadow
        pairs = None if shadow is None else shadow.take()
        rollout.comparison.add(now_s, stable, canary, pairs)
        metrics = self._engine.metrics.rollout
        if pairs is not None:
            metrics.add_comparisons(pairs)
        metrics.add("stable", stable)
        for group in canary:
            metrics.add("canary", group)
        deaths = traffic.canary.serving.dispatcher.deaths
        compared = rollout.comparison.compare(now_s)
        min_s = min_budget_s(compared.stable, rollout.bounds, self._engine.default_budget_s)
        traffic.stable.min_budget_s = traffic.canary.min_budget_s = min_s
        live = self._engine.live_quality
        labeled = None if live is None else live.canary(traffic.canary.serving.version)
        age_s, share = now_s - rollout.began_s, traffic.split.share
        decision = decide(compared, deaths, age_s, rollout.bounds, labeled, share)
        decision = rollout.patience.judge(decision, now_s, rollout.bounds, share)
        metrics.compared(decision.figures, share)
        if decision.verdict != "continue" or not rollout.ticks % LOGGED_TICKS:
            log.warning("rollout: %s: %s", decision.verdict, decision.reason, extra=_figures(decision))
        traffic.decision = decision
        rollout.ticks += 1
        return decision

    def _current(self) -> Rollout:
        self._engine.require_loaded()
        if self._opening is not None:
            raise Conflict(
                "the rollout has not begun: its version is being opened; only rollback can end it now"
            )
        if self._rollout is None:
            raise Conflict(NO_ROLLOUT.format(model=self._engine.name))
        return self._rollout

    def _open(self, read: Callable[[], LoadedPlan]) -> tuple[Plan, Serving]:
        """Opens the canary; blocks. Raises PolyrecError or Invalid."""
        plan, loaded = read()
        stable = self._engine.serving
        # compared before its lanes are opened, which takes minutes and memory
        bundles = load_bundles(plan, loaded)
        schema, served = bundles[plan.paths[0].bundle].manifest.schema_, stable.bundle.manifest.schema_
        if schema != served:
            its = f"schema '{schema.name}'" if schema.name != served.name else "another schema of that name"
            raise Invalid(
                f"model '{self._engine.name}' has schema '{served.name}', the canary {its}: "
                "requests fit only one of them; name another model, or use reload"
            )
        known = {path.name: path.latency for path in stable.paths}
        canary = canary_plan(plan, known, stable.paths[0].latency)
        return plan, self._engine.open_canary(canary, bundles)

    async def _watch(self, rollout: Rollout) -> None:
        """Judges every TICK_S until the rollout ends."""
        try:
            while True:
                await asyncio.sleep(TICK_S)
                if self._rollout is not rollout or self._engine.rollout is not rollout.traffic:
                    return  # the rollout ended or the engine was closed
                if rollout.state != "running":
                    continue
                decision = self.judge()
                if decision.verdict == "rollback":
                    self._end(rollout, "rolled_back", decision.reason)
                elif decision.verdict == "promote":
                    try:
                        await self._promote(rollout, decision.reason)
                    except (NotReady, Conflict) as e:
                        # another change of the served plan is in progress; the next tick tries again
                        log.warning("rollout: not promoted yet: %s", e)
        except Exception as e:
            log.exception("the rollout is ended, as watching it failed")
            if self._rollout is rollout:
                reason = str(e) if isinstance(e, RequestError) else "watching it failed; see the log"
                self._end(rollout, "rolled_back", reason)

    async def _promote(self, rollout: Rollout, reason: str) -> None:
        if rollout.state == "promoting":
            raise Conflict("the version is being promoted")
        async with self._engine.changing():
            rollout.state = "promoting"
            try:
                serving = await _open_in_thread(lambda: self._engine.open(rollout.plan, rollout.bundles))
            finally:
                rollout.state = "running"
            if self._rollout is not rollout:
                serving.close()
                raise Conflict("the rollout ended while the version was opened to be promoted")
            self._end(rollout, "promoted", reason, differences(self._engine.serving, serving))
            self._engine.adopt(serving)
            self._engine.attach()

    def _end(
        self, rollout: Rollout, outcome: RolloutOutcome, reason: str, changes: Sequence[str] = ()
    ) -> None:
        """Sends all requests to the engine's version, and closes the canary once it is idle."""
        engine, traffic = self._engine, rollout.traffic
        self._rollout = engine.rollout = None
        if traffic.stable.shadow is not None:
            traffic.stable.shadow.close()
        engine.retire(traffic.canary.serving)
        if engine.live_quality is not None:
            engine.live_quality.try_version(None)
        self._ended.append(
            EndedRollout(
                outcome=outcome,
                reason=reason,
                stable_version=traffic.stable.serving.version,
                canary_version=traffic.canary.serving.version,
                plan=rollout.source,
                began=rollout.began,
                ended=time.time(),
                lasted_s=round(clock() - rollout.began_s, 3),
                changes=list(changes),
                decision=traffic.decision,
            )
        )
        engine.metrics.rollout.ended(outcome)
        what = f"rollout of version {traffic.canary.serving.version}"
        self._announce(f"{what}: {outcome.replace('_', ' ')}: {reason}", traffic.decision)

    def _announce(self, what: str, decision: RolloutDecision | None = None) -> None:
        """Logs a change with the decision's figures, and adds it to the status page's events."""
        log.warning("%s", what, extra=None if decision is None else _figures(decision))
        self._engine.metrics.events.add(clock(), "rollout", what)


def _document(rollout: Rollout) -> RolloutDocument:
    traffic = rollout.traffic
    canary = traffic.canary.serving
    return RolloutDocument(
        state=rollout.state,
        stable_version=traffic.stable.serving.version,
        canary_version=canary.version,
        plan=rollout.source,
        share=traffic.split.share,
        shadow=0.0 if traffic.stable.shadow is None else traffic.stable.shadow.share,
        compare_per_s=0.0 if traffic.stable.shadow is None else traffic.stable.shadow.per_s,
        by=rollout.by,
        began=rollout.began,
        age_s=round(clock() - rollout.began_s, 3),
        bounds=rollout.bounds,
        lanes_alive=sum(lane.alive for lane in canary.lanes),
        changes=differences(traffic.stable.serving, canary),
        decision=traffic.decision,
    )


def _figures(decision: RolloutDecision) -> dict[str, Any]:
    """Returns the decision's known figures as log fields, shortened since each field's length is limited."""
    figures = _short(asdict(decision.figures))
    parts = {"stable": figures.pop("stable"), "canary": figures.pop("canary"), "figures": figures}
    return {"fields": {name: orjson.dumps(part).decode() for name, part in parts.items()}}


def _short(value: Any) -> Any:
    """Rounds a figure to four digits; drops None values from a dict."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items() if one is not None}
    return float(f"{value:.4g}") if isinstance(value, float) else value


async def _open_in_thread(work: Callable[[], Opened]) -> Opened:
    """Opens a version in a thread and returns it. Raises Invalid with the reason for a failure."""
    try:
        return await run_in_thread(work)
    except PolyrecError as e:
        reason = public(str(e))
        log.warning("a version was not loaded, the current one stays: %s", reason)
        raise Invalid(f"the version was not loaded, the current one stays: {reason}") from None
