"""One machine's time for several models: each has a router, and all routers see the time that is theirs.

`tick` allots the time of each pool by value (allotment.py) and tells every router which share of its lanes'
time the others leave, so that prices, paths and admission control are those of the time that it can have.
`may_start` says whether a lane may begin a batch now: its pool has room, and it is the model's turn
(turns.py). Pure: callers pass the time. The server and the simulation of several models run this same object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.planner.routing.query import Dispatch
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.sharing.allotment import TimeDemand, allot, rows_left
from polyrec.planner.routing.sharing.pools import LanePlace, pools_of
from polyrec.planner.routing.sharing.turns import Contender, Turns

TOLERATED_SHARE = 0.25
"""Share of a model's usual budget by which others may be ahead of it in lane time."""
LEAST_SHARE = 0.02
"""A router's share of a lane is at least this, so that it goes on trying."""
ACTIVE_QUERIES_S = 0.1
"""A model with fewer queries/s does not bound the batches of others."""
DEMAND_MARGIN = 1.15
"""Factor on arrival rates, as the queue of a model with time for no more than what arrives is always full."""
BY_VALUE = 0.5
"""Share of the time that is not guaranteed but goes by value, if weights are given and shares are not."""
INF = float("inf")


@dataclass(frozen=True, slots=True)
class ModelShare:
    """weight: of the model's information; None: 1. guaranteed: share of lanes' time; None: an equal one."""

    weight: float | None = None
    guaranteed: float | None = None


class SharingModel:
    """One model of a machine.

    scheduled: whether it is about to ask for turns. passes: how often it did. allotted: seconds per second of
    all pools together. guaranteed: share of every pool.
    """

    def __init__(self, router: Router, places: Sequence[LanePlace], asked: ModelShare) -> None:
        self.router = router
        self.places = tuple(places)
        self.asked = asked
        self.guaranteed = 0.0
        self.allotted = 0.0
        self.scheduled = False
        self.passes = 0
        self.pools: list[SharedPool | None] = [None] * len(self.places)
        self.yielded: dict[SharedPool, tuple[SharingModel, int, int]] = {}
        """To whom it left its turn; passes of that model and batches of the pool until then."""

    def contender(self, now_s: float) -> Contender[SharingModel]:
        """Its claim to the next turn; its queue is not empty."""
        state = self.router.state
        head = state.queue.pieces[0]
        start_s = head.query.deadline_s - state.service_time_s(head.rows, 0)
        return Contender(self, start_s, TOLERATED_SHARE * state.observed.budget_s)

    def waits_in(self, pool: SharedPool) -> bool:
        """Whether it has waiting work and a free lane in a pool."""
        state = self.router.state
        if not state.queue.pieces:
            return False
        return any(
            own is pool and lane.alive and lane.in_flight is None
            for own, lane in zip(self.pools, state.lanes, strict=True)
        )


class SharedPool:
    """Lanes that compete. lanes: of all models; started: number of batches."""

    def __init__(self, capacity: int, lanes: Sequence[tuple[SharingModel, int]]) -> None:
        self.capacity = capacity
        self.lanes = tuple(lanes)
        self.models = tuple(dict.fromkeys(model for model, _ in lanes))
        self.turns: Turns[SharingModel] = Turns()
        self.started = 0

    def running(self) -> int:
        """Number of batches that execute; a stalled one no longer counts."""
        count = 0
        for model, i in self.lanes:
            dispatch = model.router.state.lanes[i].in_flight
            count += dispatch is not None and not dispatch.lost
        return count

    def demand(self, model: SharingModel, rows_s: float) -> TimeDemand:
        """Possible work of a model here. rows_s: rows that no other pool takes."""
        state = model.router.state
        costs: dict[int, float] = {}
        lanes = 0
        for other, i in self.lanes:
            lane = state.lanes[i]
            if other is not model or not lane.usable:
                continue
            lanes += 1
            for p in lane.paths:
                if p in state.allowed_paths and state.paths[p].value > 0:
                    costs[p] = min(costs.get(p, INF), state.unshared_row_s(lane, p))
        paths = tuple((state.paths[p].value, seconds) for p, seconds in costs.items())
        weight = 1.0 if model.asked.weight is None else model.asked.weight
        return TimeDemand(rows_s, paths, lanes, weight, model.guaranteed * self.capacity)


class MachineTime:
    """The models of one machine. cores: that their lanes may use."""

    def __init__(self, cores: frozenset[int]) -> None:
        self._cores = cores
        self.models: list[SharingModel] = []
        self.pools: list[SharedPool] = []

    def join(self, router: Router, places: Sequence[LanePlace], asked: ModelShare) -> SharingModel:
        """Adds a model. places: of its lanes. A running batch is not counted."""
        model = SharingModel(router, places, asked)
        self.models.append(model)
        self._pool()
        return model

    def leave(self, model: SharingModel) -> None:
        """Removes a model; what it still executes no longer counts."""
        self.models.remove(model)
        model.pools = [None] * len(model.places)
        self._pool()

    def may_start(self, model: SharingModel, lane: int, now_s: float) -> bool:
        """Whether a free lane may begin a batch.

        After False, ask again soon if the model has `yielded`, else when a batch of the pool ends.
        """
        pool = model.pools[lane]
        if pool is None:
            return True
        before = model.yielded.pop(pool, None)
        if pool.running() >= pool.capacity:
            return False
        state = model.router.state
        rivals = [m for m in pool.models if m is not model and m.scheduled and m.waits_in(pool)]
        if not rivals or not state.queue.pieces:
            return True
        first = pool.turns.choose([m.contender(now_s) for m in (model, *rivals)])
        if first is model:
            return True
        if before is None or before[0] is not first or before[2] != pool.started:
            before = first, first.passes, pool.started
        elif before[1] != first.passes:
            return True  # the other had its turn and started nothing
        model.yielded[pool] = before
        return False

    def started(self, model: SharingModel, dispatch: Dispatch) -> None:
        """Records a batch that begins."""
        pool = model.pools[dispatch.lane]
        if pool is not None:
            pool.started += 1
            pool.turns.charge(
                model, dispatch.median_s, [m for m in pool.models if m.router.state.queue.pieces]
            )

    def ended(self, model: SharingModel, dispatch: Dispatch, took_s: float) -> tuple[SharingModel, ...]:
        """Records its end after `took_s`. Returns the other models that may start now."""
        pool = model.pools[dispatch.lane]
        if pool is None:
            return ()
        pool.turns.correct(model, took_s - dispatch.median_s)
        return tuple(m for m in pool.models if m is not model and m.waits_in(pool))

    def tick(self, now_s: float) -> None:
        """Allots the time anew by observed rates; call it about ten times a second."""
        rows_s = {m: DEMAND_MARGIN * m.router.state.observed.rows_s for m in self.models}
        for model in self.models:
            model.allotted = 0.0
            model.router.state.others_budget_s = INF
        for pool in self.pools:
            demands = [pool.demand(model, rows_s[model]) for model in pool.models]
            given = allot(pool.capacity, demands)
            spare = pool.capacity - sum(given)
            for model, demand, seconds in zip(pool.models, demands, given, strict=True):
                pool.turns.shares[model] = (seconds + spare * model.guaranteed) / pool.capacity
                rows_s[model] = rows_left(demand, seconds)
                model.allotted += seconds
                left = max(seconds + spare, LEAST_SHARE)
                state = model.router.state
                for other, i in pool.lanes:
                    if other is model:
                        state.lanes[i].share = min(1.0, left / demand.lanes) if demand.lanes else 1.0
                    elif other.router.state.observed.queries_s > ACTIVE_QUERIES_S:
                        budget_s = other.router.state.observed.budget_s
                        state.others_budget_s = min(state.others_budget_s, budget_s)

    def _pool(self) -> None:
        """Forms the pools again, and divides what is not asked for equally among the others."""
        models = self.models
        free = 1 - sum(m.asked.guaranteed or 0.0 for m in models)
        equal = [m for m in models if m.asked.guaranteed is None]
        if any(m.asked.weight is not None for m in models):
            free *= 1 - BY_VALUE
        for model in models:
            asked = model.asked.guaranteed
            model.guaranteed = max(0.0, free) / len(equal) if asked is None else asked
            model.pools = [None] * len(model.places)
            for lane in model.router.state.lanes:
                lane.share = 1.0
        self.pools = []
        for pool in pools_of([model.places for model in models], self._cores):
            shared = SharedPool(pool.capacity, [(models[m], i) for m, i in pool.lanes])
            self.pools.append(shared)
            for model, i in shared.lanes:
                model.pools[i] = shared
                shared.turns.shares[model] = model.guaranteed
