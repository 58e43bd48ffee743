"""Shares one machine's lane time between several models, each of which has its own router.

`MachineTime.tick` allots the time of each pool by value (allotment.py), and tells every router the share of
lane time that other models leave, which affects its prices, paths and admission control.
`SharingModel.may_start` decides whether a lane may start a batch now, which requires free capacity in its
pool and the model's turn (turns.py). The code is pure and reads no clock; a model's dispatcher calls it, and
is woken through `SharingModel.wake` when another model's batch ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyrec.planner.routing.query import Dispatch
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.sharing.allotment import TimeDemand, allot, rows_left
from polyrec.planner.routing.sharing.pools import LanePlace, pools_of
from polyrec.planner.routing.sharing.turns import Contender, Turns

TOLERATED_SHARE = 0.25
"""Maximum lead of other models in lane time, as a share of a model's usual budget."""
MIN_SHARE = 0.02
"""Minimum share of a lane that a router is told, so that it keeps sending some batches."""
ACTIVE_QUERIES_S = 0.1
"""Queries/s below which a model's budget does not limit other models' batches."""
DEMAND_MARGIN = 1.15
"""Safety factor on arrival rates; with exactly the time needed, a model's queue would always be full."""
BY_VALUE = 0.5
"""If weights are given, share of the unassigned time that is allotted by value instead of guaranteed."""
MIN_TICK_S = 0.05
"""Minimum interval of allotments, for which the dispatcher of each model asks on its own ticks."""
INF = float("inf")


@dataclass(frozen=True, slots=True)
class ModelShare:
    """A model's configured share of lane time.

    weight: weight of the model's information, None for 1.
    guaranteed: guaranteed share of lane time, None for an equal share.
    """

    weight: float | None = None
    guaranteed: float | None = None


class SharingModel:
    """One model of a machine, as its dispatcher sees it.

    wake: schedules the dispatcher's next pass over the free lanes.
    scheduled: whether its next pass over the free lanes is scheduled.
    passes: number of passes so far.
    yielded: whether the current pass let another model go first, so that another pass must follow.
    allotted: seconds of lane time per second in all pools together.
    guaranteed: guaranteed share of every pool.
    """

    def __init__(
        self,
        machine: MachineTime,
        router: Router,
        places: Sequence[LanePlace],
        asked: ModelShare,
        wake: Callable[[], None],
    ) -> None:
        self.machine = machine
        self.wake = wake
        self.router = router
        self.places = tuple(places)
        self.asked = asked
        self.guaranteed = 0.0
        self.allotted = 0.0
        self.scheduled = False
        self.passes = 0
        self.pools: list[SharedPool | None] = [None] * len(self.places)
        self.yielded = False
        self._yields: dict[SharedPool, tuple[int, dict[SharingModel, int]]] = {}

    def may_start(self, lane: int) -> bool:
        """Whether a free lane may start a batch.

        After False, ask again soon if the model has `yielded`, otherwise when it is woken. Between two
        batches of a pool, a model yields to each other model only once, until that model's next pass. So
        models that start nothing cannot wait for each other forever.
        """
        pool = self.pools[lane]
        if pool is None:
            return True
        if pool.running() >= pool.capacity:
            return False
        yielded_to = self.yielded_to(pool)
        # a model that was let go first, and has had a pass without starting a batch, no longer counts
        rivals = [m for m in pool.rivals(self) if yielded_to.get(m, m.passes) == m.passes]
        if not rivals or not self.router.state.queue.pieces:
            return True
        first = pool.turns.choose([m.contender() for m in (self, *rivals)])
        if first is self:
            return True
        yielded_to[first] = first.passes
        self.yielded = True
        return False

    def started(self, dispatch: Dispatch) -> None:
        """Records the start of a batch."""
        pool = self.pools[dispatch.lane]
        if pool is not None:
            pool.started += 1
            waiting = [m for m in pool.models if m.router.state.queue.pieces]
            pool.turns.charge(self, dispatch.median_s, waiting)

    def ended(self, dispatch: Dispatch, took_s: float) -> None:
        """Records the end of a batch after `took_s`, and wakes the other models that may start one now."""
        pool = self.pools[dispatch.lane]
        if pool is None:
            return
        pool.turns.correct(self, took_s - dispatch.median_s)
        for model in pool.models:
            if model is not self and model.waits_in(pool):
                model.wake()

    def passed(self, scheduled: bool) -> None:
        """Records the end of a pass over the free lanes. scheduled: whether another one will follow."""
        self.passes += 1
        self.scheduled, self.yielded = scheduled, False

    def yielded_to(self, pool: SharedPool) -> dict[SharingModel, int]:
        """Returns the models let go first since the last batch of a pool began, with their passes then."""
        started, models = self._yields.get(pool, (-1, {}))
        if started != pool.started:
            models = {}
            self._yields[pool] = pool.started, models
        return models

    def forget_yields(self) -> None:
        """Forgets which models were let go first, as the pools have changed."""
        self._yields.clear()

    def contender(self) -> Contender[SharingModel]:
        """Returns the model's claim to the next turn. Its queue must not be empty."""
        state = self.router.state
        head = state.queue.pieces[0]
        start_s = head.query.deadline_s - state.service_time_s(head.rows, 0)
        return Contender(self, start_s, TOLERATED_SHARE * state.observed.budget_s)

    def waits_in(self, pool: SharedPool) -> bool:
        """Whether the model has waiting work and a free lane in a pool."""
        state = self.router.state
        if not state.queue.pieces:
            return False
        return any(
            own is pool and lane.alive and lane.in_flight is None
            for own, lane in zip(self.pools, state.lanes, strict=True)
        )


class SharedPool:
    """Lanes of all models that compete for the same resource.

    started: number of batches so far.
    rejecting: seconds per second spent on reading requests that are then rejected. Only nonzero for the event
        loop, where reading competes with inline lanes.
    """

    def __init__(self, capacity: int, lanes: Sequence[tuple[SharingModel, int]]) -> None:
        self.capacity = capacity
        self.rejecting = 0.0
        self.lanes = tuple(lanes)
        self.models = tuple(dict.fromkeys(model for model, _ in lanes))
        self.turns: Turns[SharingModel] = Turns()
        self.started = 0

    @property
    def is_loop(self) -> bool:
        """Whether the pool's lanes run in the event loop."""
        return all(model.router.state.lanes[i].inline for model, i in self.lanes)

    def running(self) -> int:
        """Returns the number of running batches, excluding stalled ones."""
        count = 0
        for model, i in self.lanes:
            dispatch = model.router.state.lanes[i].in_flight
            count += dispatch is not None and not dispatch.lost
        return count

    def demand(self, model: SharingModel, rows_s: float) -> TimeDemand:
        """Returns a model's demand in this pool. rows_s: rows per second that no other pool takes."""
        state = model.router.state
        costs: dict[int, float] = {}
        lanes = 0
        for lane in (state.lanes[i] for other, i in self.lanes if other is model):
            if not lane.usable:
                continue
            lanes += 1
            for p in lane.paths:
                if p in state.allowed_paths and state.paths[p].value > 0:
                    costs[p] = min(costs.get(p, INF), state.row_times.lane_s(lane, p))
        paths = tuple((state.paths[p].value, seconds) for p, seconds in costs.items())
        weight = 1.0 if model.asked.weight is None else model.asked.weight
        guaranteed = model.guaranteed * max(0.0, self.capacity - self.rejecting)
        return TimeDemand(rows_s, paths, lanes, weight, guaranteed)

    def rivals(self, model: SharingModel) -> list[SharingModel]:
        """Returns the other models that could start a batch in the pool at their next pass."""
        return [m for m in self.models if m is not model and m.scheduled and m.waits_in(self)]

    def divide(self, rows_s: dict[SharingModel, float]) -> None:
        """Allots the pool's time to its models, and tells their routers.

        rows_s: rows per second that no earlier pool takes, by model; reduced by those that this one takes.
        """
        demands = [self.demand(model, rows_s[model]) for model in self.models]
        capacity = max(MIN_SHARE, self.capacity - self.rejecting)
        allotted = allot(capacity, demands)
        spare = capacity - sum(allotted)
        self.rejecting = 0.0
        for model, demand, seconds in zip(self.models, demands, allotted, strict=True):
            self.turns.shares[model] = (seconds + spare * model.guaranteed) / capacity
            rows_s[model] = rows_left(demand, seconds)
            if self.is_loop and demand.rows_s:
                left_over = rows_s[model] / demand.rows_s
                self.rejecting += model.router.state.front.read_share * left_over
            model.allotted += seconds
            self._tell(model, demand.lanes, max(seconds + spare, MIN_SHARE))

    def _tell(self, model: SharingModel, lanes: float, seconds: float) -> None:
        """Tells a model's router its share of the lanes, and the shortest usual budget of other models.

        lanes: usable lanes of the model here. seconds: seconds per second that other models leave to them.
        """
        state = model.router.state
        for other, i in self.lanes:
            if other is model:
                state.lanes[i].share = min(1.0, seconds / lanes) if lanes else 1.0
            elif other.router.state.observed.possible_s > ACTIVE_QUERIES_S:
                budget_s = other.router.state.observed.budget_s
                state.others_budget_s = min(state.others_budget_s, budget_s)


class MachineTime:
    """The models that share a machine. cores: the CPU cores that lanes may use."""

    def __init__(self, cores: frozenset[int]) -> None:
        self._cores = cores
        self.models: list[SharingModel] = []
        self.pools: list[SharedPool] = []
        self._ticked_s = 0.0

    def join(
        self,
        router: Router,
        places: Sequence[LanePlace],
        asked: ModelShare,
        wake: Callable[[], None] = lambda: None,
    ) -> SharingModel:
        """Adds a model. Batches already running are not counted.

        places: where each of its lanes runs.
        wake: see SharingModel.
        """
        model = SharingModel(self, router, places, asked, wake)
        self.models.append(model)
        self._pool()
        return model

    def leave(self, model: SharingModel) -> None:
        """Removes a model, whose running batches no longer count, and wakes those that may wait for it."""
        if model not in self.models:
            return
        self.models.remove(model)
        model.pools = [None] * len(model.places)
        self._pool()
        for other in self.models:
            if other.router.state.queue.pieces:
                other.wake()

    def tick(self) -> None:
        """Recomputes the allotments from observed rates. Call it about ten times a second."""
        rows_s = {m: DEMAND_MARGIN * m.router.state.observed.rows_s for m in self.models}
        for model in self.models:
            model.allotted = 0.0
            model.router.state.others_budget_s = INF
        for pool in self.pools:
            pool.divide(rows_s)

    def tick_if_due(self, now_s: float) -> None:
        """Calls `tick` unless it was called within MIN_TICK_S, for another model."""
        if now_s - self._ticked_s >= MIN_TICK_S:
            self._ticked_s = now_s
            self.tick()

    def _pool(self) -> None:
        """Rebuilds the pools, and divides the unassigned time equally among models without a share."""
        models = self.models
        free = 1 - sum(m.asked.guaranteed or 0.0 for m in models)
        equal = [m for m in models if m.asked.guaranteed is None]
        if any(m.asked.weight is not None for m in models):
            free *= 1 - BY_VALUE
        for model in models:
            asked = model.asked.guaranteed
            model.guaranteed = max(0.0, free) / len(equal) if asked is None else asked
            model.pools = [None] * len(model.places)
            model.forget_yields()
            for lane in model.router.state.lanes:
                lane.share = 1.0
        self.pools = []
        for pool in pools_of([model.places for model in models], self._cores):
            shared = SharedPool(pool.capacity, [(models[m], i) for m, i in pool.lanes])
            self.pools.append(shared)
            for model, i in shared.lanes:
                model.pools[i] = shared
                shared.turns.shares[model] = model.guaranteed
