"""The engine of one model: loads plans and swaps the generation that answers requests.

Request handlers ask for `Engine.serving`, the current generation (server/app/serving.py), on every request. A
reload opens the new generation beside the old one and swaps them in one assignment; the old one closes after
its last query is answered. The bundles of the previous generation stay open, so that a rollback serves the
same bytes even if the files were replaced since.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.version import code_version
from polyrec.planner.plan import Plan, Routing
from polyrec.server.access.access import Access
from polyrec.server.app.background import run_in_thread
from polyrec.server.app.logs import MODEL
from polyrec.server.app.opening import open_serving
from polyrec.server.app.served_model import ALIAS
from polyrec.server.app.serving import ENDPOINTS, LoadedPlan, Serving
from polyrec.server.clock import clock
from polyrec.server.errors import Conflict, NotReady
from polyrec.server.live_quality.live import LiveQuality
from polyrec.server.live_quality.settings import LiveQualitySettings
from polyrec.server.metrics.metrics import Metrics
from polyrec.server.prediction_log.log import PredictionLog
from polyrec.server.prediction_log.settings import PredictionLogSettings
from polyrec.server.rollout.traffic import RolloutTraffic
from polyrec.server.tiers.update_store import UpdateStore, left_behind
from polyrec.server.tracing.tracer import Tracer

log = logging.getLogger("polyrec.serving")

T = TypeVar("T")

NO_PATH = "none"
COLLECTED_AFTER_S = 1.0
"""Delay before a garbage collection that frees a retired generation."""
STILL_LOADING = "the server is still loading; ask /readyz"
NO_LONGER_SERVED = "this model is no longer served"
NO_BUNDLES: Mapping[Path, Bundle] = {}


class LifecycleState(Enum):
    """State of the server. /readyz answers 200 only in `READY`."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


@dataclass(slots=True)
class Lifecycle:
    """A mutable cell for the server's state, shared by the engines of all its models."""

    state: LifecycleState = LifecycleState.LOADING


class Engine:
    """The generations of one model, and the state that outlives them: metrics, access control, row updates.

    name: the model's name, which labels its metrics; None for the only model of a server.
    sibling: another engine of the same server, whose state, access control and tracer this one shares.
    """

    def __init__(self, name: str | None = None, sibling: Engine | None = None) -> None:
        self.metrics = Metrics(name)
        self.access: Access = Access(self.metrics) if sibling is None else sibling.access
        self.tracer: Tracer | None = None if sibling is None else sibling.tracer
        self.lifecycle: Lifecycle = Lifecycle() if sibling is None else sibling.lifecycle
        self.prediction_log: PredictionLog | None = None
        self.live_quality: LiveQuality | None = None
        self.rollout: RolloutTraffic | None = None
        """The rollout in progress, which splits requests between two versions; None without one."""
        self.name_in_log = name
        """The name in log lines (`logs.MODEL`); None for the only model of a server."""
        self.model_name = name
        """The name chosen by the operator; None means the bundle's name."""
        self.on_adopt: list[Callable[[Serving], None]] = []
        """Callbacks for each generation that goes into service; called from any thread."""
        self.default_budget_ms = self.max_budget_s = 0.0
        """Latency budget of requests that name none, and the operator's cap on budgets."""
        self.previous: LoadedPlan | None = None
        self.update_store = UpdateStore()
        self.routing = Routing()
        self.outcomes_without_path = {e: self.metrics.outcomes(e, NO_PATH) for e in ENDPOINTS}
        self._serving: Serving | None = None
        self._changing = asyncio.Lock()
        self._closed = False
        self._retiring: dict[asyncio.Task[None], Serving] = {}
        self._kept_updates: tuple[Changes, ...] = ()
        """Row updates of the current generation and of the one that a rollback would restore."""
        self.metrics.set_ready_check(lambda: self.why_unready() is None)

    def load(self, plan: Plan, loaded: Mapping[Path, Bundle] = NO_BUNDLES) -> None:
        """Opens a plan and puts it into service; blocks.

        loaded: bundles that are open already, by folder.
        Raises PlanError, BundleError or RuntimeUnavailable, and then keeps serving the previous plan.
        """
        self.adopt(self.open(plan, loaded))

    def open(self, plan: Plan, loaded: Mapping[Path, Bundle] = NO_BUNDLES) -> Serving:
        """Opens a plan without serving it; `adopt` does that. Blocks. Raises the same errors as `load`."""
        return open_serving(plan, self.metrics, loaded, self.update_store, self.model_name)

    def open_canary(self, plan: Plan, loaded: Mapping[Path, Bundle] = NO_BUNDLES) -> Serving:
        """Opens another version of the model for a rollout; its process lanes use only spare CPU time.
        Blocks.

        Raises the same errors as `load`.
        """
        name = self.serving.model.name
        return open_serving(plan, self.metrics, loaded, self.update_store, name, spare=True)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Context manager that excludes other changes of the served plan.

        Raises NotReady if one is running.
        """
        if self._closed:
            raise NotReady(NO_LONGER_SERVED)
        if self._changing.locked():
            raise NotReady("another plan is being opened; try again when it is done")
        if self.state is LifecycleState.LOADING:
            raise NotReady("the server is still loading its first plan; retry when it is ready")
        async with self._changing:
            try:
                yield
            finally:
                self._close_unused_updates()  # of a plan that was opened but not adopted

    def check_no_rollout(self) -> None:
        """Raises Conflict during a rollout."""
        rollout = self.rollout
        if rollout is not None:
            raise Conflict(
                f"model '{self.name}': a rollout of version {rollout.canary.serving.version} is in progress;"
                " promote it or roll it back first: polyrec rollout promote, polyrec rollout rollback"
            )

    def open_prediction_log(self, settings: PredictionLogSettings, serving: Serving) -> None:
        """Creates a prediction log for the schema of `serving`, or continues an existing one.

        Raises PredictionLogError or PrivacyError.
        """
        self.prediction_log = PredictionLog(settings, serving.bundle.manifest.schema_)
        self.metrics.set_prediction_log_counts(self.prediction_log.counts)
        self.on_adopt.append(self.prediction_log.follow)

    def open_live_quality(
        self, settings: LiveQualitySettings, log_settings: PredictionLogSettings, serving: Serving
    ) -> None:
        """Starts to measure the live quality of `serving` and its successors. Raises LiveQualityError."""
        self.live_quality = LiveQuality(settings, log_settings, self.metrics, serving)
        self.on_adopt.append(self.live_quality.adopt)

    def adopt(self, serving: Serving) -> dict[str, int]:
        """Puts an open generation into service, and closes the previous one once it is idle.

        Returns the number of row updates that the new generation does not have, by path of the previous one.
        """
        old, self._serving = self._serving, serving
        for adopted in self.on_adopt:
            adopted(serving)
        model = serving.model
        self.metrics.set_build_info(code_version(), model.name, model.version, serving.plan.paths[0].runtime)
        self.set_default_budget(serving.plan.default_budget_ms)
        self.metrics.set_dispatcher(serving.dispatcher)
        self.metrics.set_tiers([stack.figures for stack in serving.tiers.distinct], serving.tiers.changes)
        self.metrics.live.set_drifts(serving.drifts)
        self.routing = serving.plan.routing
        left: dict[str, int] = {}
        self._kept_updates = tuple(serving.tiers.changes.values())
        for changes in self._kept_updates:
            changes.served = True
        if old is not None:
            what = f"{model.name} {model.version}"
            self.metrics.events.add(clock(), "reload", f"reload: {what} took over")
            self.previous = old.loaded_plan
            left = left_behind(old.tiers.changes, serving.tiers.changes)
            self._kept_updates += tuple(old.tiers.changes.values())
            self.update_store.keep_only(self._kept_updates)
            self.retire(old)
        if self.state is LifecycleState.LOADING:
            self.lifecycle.state = LifecycleState.READY
        return left

    @property
    def state(self) -> LifecycleState:
        """The server's state."""
        return self.lifecycle.state

    @property
    def name(self) -> str:
        """The model's name for clients. Until it has loaded, the operator's name or the alias."""
        if self._serving is None:
            return self.model_name or ALIAS
        return self._serving.model.name

    @property
    def has_loaded(self) -> bool:
        """Whether a generation is in service now."""
        return self._serving is not None

    @property
    def serving(self) -> Serving:
        """The generation in service. Raises NotReady before the first one and after `close`."""
        if self._serving is None:
            raise NotReady(NO_LONGER_SERVED if self._closed else STILL_LOADING)
        return self._serving

    def require_loaded(self) -> None:
        """Raises NotReady before the first generation, when nothing can be said of what it has, and after
        `close`.
        """
        _ = self.serving

    @property
    def plan(self) -> Plan:
        """The plan in service, with the operator's changes since. Raises NotReady before the first one."""
        changed = {"routing": self.routing, "default_budget_ms": self.default_budget_ms}
        return self.serving.plan.model_copy(update=changed)

    @property
    def default_budget_s(self) -> float:
        """Latency budget of requests that name none, in seconds."""
        return self.default_budget_ms / 1e3

    def stacks(self) -> Mapping[str, TierStack]:
        """Returns the tiers in service by path. Raises NotReady before the first generation."""
        return self.serving.tiers.stacks

    def set_routing(self, routing: Routing) -> None:
        """Sets another routing policy or other weights, which last until the next plan."""
        self.serving.dispatcher.router.set_policy(routing)
        weights = "".join(f", {path} x {weight:g}" for path, weight in routing.weights.items())
        self.metrics.events.add(clock(), "routing", f"routing set: {routing.policy}{weights}")
        self.routing = routing

    def set_default_budget(self, default_budget_ms: float) -> None:
        """Sets the budget of requests that name none, and with it the cap on budgets, until the next plan."""
        self.default_budget_ms = default_budget_ms
        self.max_budget_s = self.serving.plan.max_budget_ms(default_budget_ms) / 1e3
        self.metrics.set_default_budget(self.default_budget_s)

    def why_unready(self) -> str | None:
        """Returns why the server is not ready, None if it is."""
        if self.state is not LifecycleState.READY:
            return f"the server is {self.state.value}"
        if self._serving is None:
            return "no plan is in service"
        if not self._serving.dispatcher.can_answer:
            return "no lane can answer: all are dead, and being started again"
        if self._serving.dispatcher.stalled:
            return "all lanes are stalled"
        return None

    def attach(self) -> None:
        """Watches for lane deaths (otherwise from the first request on) and follows the reports of live
        quality, on the running loop; to be called after each change of the generation."""
        if self._serving is not None:
            self.run_named(self._serving.dispatcher.attach)
        if (live := self.live_quality) is not None:
            self.run_named(lambda: live.watch(self.name))

    def run_named(self, work: Callable[[], T]) -> T:
        """Calls `work`. Log lines of it, and of tasks that it starts, name the model if there are several."""
        context = copy_context()
        context.run(MODEL.set, self.name_in_log)
        return context.run(work)

    def enter(self, state: LifecycleState) -> None:
        """Enters another state."""
        if state is LifecycleState.DRAINING and self.state is not state:
            self.metrics.events.add(clock(), "draining", "draining: accepts no new work")
        self.lifecycle.state = state

    async def drained(self) -> None:
        """Waits until every query has been answered, also those of replaced generations."""
        for serving in (*self._retiring.values(), self.serving):
            await serving.dispatcher.drained()

    def fail_all(self) -> None:
        """Answers all waiting requests with NotReady (503); called when the drain timeout is over."""
        generations = [*self._retiring.values(), *([self._serving] if self._serving is not None else [])]
        if self.rollout is not None:
            generations.append(self.rollout.canary.serving)
        for serving in generations:
            serving.dispatcher.fail_all(
                NotReady("the server is shutting down and could not answer; retry on another")
            )

    def close(self) -> None:
        """Closes the generation in service; no request is answered afterwards."""
        self._closed = True
        for task in self._retiring:
            task.cancel()
        if self.rollout is not None:
            self.rollout.canary.serving.close()
            self.rollout = None
        if self._serving is not None:
            self._serving.close()
        self._serving = None
        self.update_store.close()

    def _close_unused_updates(self, closed: Serving | None = None) -> None:
        """Closes row updates that no current, retiring, canary or rollback generation uses.

        closed: a retiring generation to disregard, as it has just been closed.
        """
        used = [serving for serving in self._retiring.values() if serving is not closed]
        if self.rollout is not None:
            used.append(self.rollout.canary.serving)
        others = [changes for serving in used for changes in serving.tiers.changes.values()]
        self.update_store.keep_only([*self._kept_updates, *others])

    def retire(self, old: Serving) -> None:
        """Closes a replaced generation after its last answer, in a background task."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            old.close()
            return

        async def end() -> None:
            try:
                await old.dispatcher.drained()
                if old.tiers.stacks:
                    # lanes must close on their event loop; closing tiers may take seconds
                    old.dispatcher.close()
                    await run_in_thread(old.tiers.close)
            finally:
                # covers cancellation while waiting; closing twice is harmless
                old.close()
            async with self._changing:  # a plan that is being opened may still claim the updates
                self._close_unused_updates(old)

        def ended(task: asyncio.Task[None]) -> None:
            del self._retiring[task]
            # generations contain reference cycles and hold files open until collected; startup objects are
            # frozen (gc.freeze), so the collection is cheap
            loop.call_later(COLLECTED_AFTER_S, gc.collect)

        task = loop.create_task(end())
        self._retiring[task] = old
        task.add_done_callback(ended)
