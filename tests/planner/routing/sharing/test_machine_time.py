"""Time of one machine for several models: shares that routers see, and turns."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.routing.sharing.machine_time import (
    DEMAND_MARGIN,
    MIN_TICK_S,
    MachineTime,
    ModelShare,
    SharingModel,
)
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.planner.routing.sharing.turns import Contender
from tests.planner.routing.servers import TABLE, cpu_lanes

CORES = frozenset({0})
SECONDS = count()
PLACE = LanePlace("cpu", "process", CORES)


def joined(machine: MachineTime, share: ModelShare | None = None, place: LanePlace = PLACE) -> SharingModel:
    state = RouterState((TABLE,), cpu_lanes(1, place.kind), Routing(), Limits(), 0.0)
    model = machine.join(Router(state), [place], share or ModelShare())
    model.scheduled = True
    return model


def arrive(model: SharingModel, rows_s: float, budget_s: float = 0.02) -> None:
    """Twenty seconds of traffic."""
    observed = model.router.state.observed
    begin_s = 20 * next(SECONDS)
    for second in range(1, 21):
        for _ in range(100):
            observed.record_arrival(round(rows_s / 100), budget_s)
        observed.tick(begin_s + second)


def submit(model: SharingModel, budget_s: float, now_s: float = 0.0, rows: int = 10) -> Query:
    query = Query(rows, now_s, now_s + budget_s)
    assert model.router.submit(query, now_s) is None
    return query


def start(model: SharingModel, now_s: float = 0.0):
    dispatch = model.router.next(0, now_s)
    assert dispatch is not None
    model.started(dispatch)
    return dispatch


def end(machine: MachineTime, model: SharingModel, dispatch, now_s: float) -> tuple[SharingModel, ...]:
    """Ends a batch; returns the models that were woken."""
    woken: list[SharingModel] = []
    for each in machine.models:
        each.wake = partial(woken.append, each)
    model.router.done(dispatch, now_s, now_s - dispatch.started_s)
    model.ended(dispatch, now_s - dispatch.started_s)
    return tuple(woken)


def test_equal_shares_by_default_and_half_of_them_if_weights_are_given():
    machine = MachineTime(CORES)
    models = [joined(machine), joined(machine)]
    assert [m.guaranteed for m in models] == [0.5, 0.5]
    weighted = joined(machine, ModelShare(weight=2.0))
    assert [m.guaranteed for m in (*models, weighted)] == pytest.approx([1 / 6] * 3)
    named = joined(machine, ModelShare(guaranteed=0.4))
    assert [m.guaranteed for m in (*models, weighted, named)] == pytest.approx([0.1, 0.1, 0.1, 0.4])


def test_models_with_different_numbers_of_lanes_share_their_time():
    """Each model's lanes were looked up by the other's numbers, and the first tick failed."""
    machine = MachineTime(CORES)
    one = joined(machine)
    state = RouterState((TABLE,), cpu_lanes(2, PLACE.kind), Routing(), Limits(), 0.0)
    two = machine.join(Router(state), [PLACE, PLACE], ModelShare())
    cost_s = one.router.state.row_times.lane_s(one.router.state.lanes[0], 0)
    for model in (one, two):
        arrive(model, 5 / cost_s)
    machine.tick()
    assert [lane.share for lane in one.router.state.lanes] == pytest.approx([0.5])
    assert [lane.share for lane in two.router.state.lanes] == pytest.approx([0.25, 0.25])
    state.lanes[0].alive = False
    machine.tick()
    assert one.router.state.lanes[0].share == pytest.approx(0.5)
    assert state.lanes[1].share == pytest.approx(0.5)


def test_a_router_sees_the_time_that_the_others_leave():
    machine = MachineTime(CORES)
    busy, other = joined(machine), joined(machine)
    lane = other.router.state.lanes[0]
    alone = other.router.state.total_rate
    cost_s = busy.router.state.row_times.lane_s(busy.router.state.lanes[0], 0)
    arrive(busy, 0.3 / cost_s)
    machine.tick()
    assert lane.share == pytest.approx(1 - 0.3 * DEMAND_MARGIN, rel=0.02)
    assert busy.router.state.lanes[0].share == 1.0
    other.router.tick(1.0)
    assert other.router.state.total_rate == pytest.approx(alone * lane.share, rel=0.02)
    # past capacity, what is guaranteed
    arrive(busy, 5 / cost_s)
    arrive(other, 5 / cost_s)
    machine.tick()
    assert lane.share == pytest.approx(0.5)
    # a batch delays the queries of all: those with the shortest budget bound it
    arrive(busy, 5 / cost_s, budget_s=0.004)
    machine.tick()
    assert other.router.state.others_budget_s == pytest.approx(0.004)
    # unless only queries come for which no batch would be short enough
    observed = busy.router.state.observed
    begin_s = 20 * next(SECONDS)
    for second in range(1, 21):
        observed.record_arrival(1, 1e-6, possible=False)
        observed.tick(begin_s + second)
    machine.tick()
    assert other.router.state.others_budget_s == float("inf")


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_reading_what_is_rejected_takes_time_of_lanes_in_the_loop_only(kind):
    machine = MachineTime(CORES)
    models = [joined(machine, place=LanePlace("cpu", kind, CORES if kind == "process" else frozenset()))]
    models.append(joined(machine, place=models[0].places[0]))
    lanes = [model.router.state.lanes[0] for model in models]
    for model, lane in zip(models, lanes, strict=True):
        # half as much again as there is time for, at the margin that demand is given
        arrive(model, 0.75 / DEMAND_MARGIN / model.router.state.row_times.lane_s(lane, 0))
        model.router.state.front.read_share = 0.15
    for _ in range(19):
        machine.tick()
    assert lanes[0].share == pytest.approx(lanes[1].share)
    if kind == "process":
        assert lanes[0].share == pytest.approx(0.5)
    else:
        # what is rejected, 1 - time / 1.5, of the .3 that reading takes
        left = 2 * lanes[0].share
        assert left == pytest.approx(1 - 0.3 * (1 - left / 1.5), rel=3e-3)
        assert left < 0.9


def test_the_time_of_a_model_that_left_is_the_others():
    machine = MachineTime(CORES)
    busy, other = joined(machine), joined(machine)
    arrive(busy, 1e6)
    arrive(other, 1e6)
    machine.tick()
    assert other.router.state.lanes[0].share == pytest.approx(0.5)
    machine.leave(busy)
    assert (other.router.state.lanes[0].share, other.guaranteed) == (1.0, 1.0)
    assert not machine.pools
    assert other.may_start(0)


def test_one_batch_at_a_time_and_the_next_one_is_the_most_urgent():
    machine = MachineTime(CORES)
    calm, hurried = joined(machine), joined(machine)
    submit(calm, 0.5)
    assert calm.may_start(0)
    dispatch = start(calm)
    submit(calm, 0.5)
    submit(hurried, 0.05)
    assert not hurried.may_start(0)
    assert not hurried.yielded
    assert end(machine, calm, dispatch, 1e-4) == (hurried,)
    assert not calm.may_start(0)
    assert calm.yielded
    assert hurried.may_start(0)


def test_a_large_query_is_more_urgent_than_a_small_one_of_the_same_deadline():
    machine = MachineTime(CORES)
    small, large = joined(machine), joined(machine)
    service_s = large.router.state.service_time_s(1000, 0)
    submit(small, 0.5)
    submit(large, 0.5 + service_s / 2, rows=1000)
    assert not small.may_start(0)
    assert large.may_start(0)


def test_a_model_whose_lane_is_dead_is_neither_waited_for_nor_woken():
    machine = MachineTime(CORES)
    calm, hurried = joined(machine), joined(machine)
    submit(calm, 0.5)
    dispatch = start(calm)
    submit(calm, 0.5)
    submit(hurried, 0.05)
    hurried.router.lane_down(0)
    assert end(machine, calm, dispatch, 1e-4) == ()
    assert calm.may_start(0)


def test_a_turn_that_the_other_does_not_use_is_not_lost():
    machine = MachineTime(CORES)
    calm, hurried = joined(machine), joined(machine)
    submit(calm, 0.5)
    submit(hurried, 0.05)
    assert not calm.may_start(0)
    assert not calm.may_start(0)  # the other has not been asked yet
    hurried.passed(scheduled=True)
    assert calm.may_start(0)
    assert calm.may_start(0)
    # with the next batch it has another turn
    end(machine, calm, start(calm), 1e-4)
    submit(calm, 0.5)
    assert not calm.may_start(0)
    # one that is not about to ask is not waited for
    hurried.scheduled = False
    assert calm.may_start(0)


@pytest.mark.parametrize("pools", [1, 2])
def test_models_that_begin_nothing_do_not_let_one_another_go_first_for_ever(pools: int) -> None:
    """Each model has two lanes a pool. With two pools each model is behind its share in another one."""
    machine = MachineTime(frozenset(range(2 * pools)))
    places = [LanePlace("cpu", "process", frozenset({2 * p, 2 * p + 1})) for p in range(pools) for _ in "12"]
    models = []
    for _ in range(2):
        state = RouterState((TABLE,), cpu_lanes(len(places), "process"), Routing(), Limits(), 0.0)
        models.append(machine.join(Router(state), places, ModelShare()))
    assert len(machine.pools) == pools
    for model in models:
        submit(model, 0.05)
        model.scheduled = True
    for ahead, pool in zip(models, machine.pools, strict=False):
        pool.turns.charge(ahead, 10.0, models)
    rounds = 0
    while any(model.scheduled for model in models):
        rounds += 1
        assert rounds < 5
        for model in models:
            if model.scheduled:
                free = [model.may_start(lane) for lane in range(len(places))]
                assert all(free) != model.yielded
                model.passed(scheduled=model.yielded)
    assert rounds > 1


def test_a_stalled_batch_does_not_hold_the_others_up():
    machine = MachineTime(CORES)
    stalled, other = joined(machine), joined(machine)
    submit(stalled, 0.5)
    dispatch = start(stalled)
    submit(other, 0.5)
    assert not other.may_start(0)
    stalled.router.expire(60.0)
    assert dispatch.lost
    assert other.may_start(0)


def test_a_model_that_leaves_wakes_those_that_waited():
    machine = MachineTime(CORES)
    models = [joined(machine) for _ in range(3)]
    woken: list[SharingModel] = []
    for model in models:
        model.wake = partial(woken.append, model)
    gone, waiting, idle = models
    machine.leave(gone)
    machine.leave(gone)
    assert not woken
    assert machine.models == [waiting, idle]
    submit(waiting, 0.5)
    machine.leave(idle)
    assert woken == [waiting]


def test_time_is_allotted_once_per_tick_however_many_models_tick():
    machine = MachineTime(CORES)
    models = [joined(machine) for _ in range(3)]
    allotted: list[float] = []
    for tick in range(1, 4):
        for late in range(len(models)):
            # each allotment sets what it finds here
            models[0].allotted = -1.0
            machine.tick_if_due(2 * MIN_TICK_S * (tick + late / 10))
            allotted.append(models[0].allotted)
    assert [value >= 0 for value in allotted] == [True, False, False] * 3


def test_a_model_with_a_small_share_waits_no_longer_than_it_tolerates() -> None:
    """Its budget passed while others, which needed all time, had the earlier deadlines."""
    machine = MachineTime(CORES)
    busy, light = joined(machine, ModelShare(guaranteed=0.8)), joined(machine, ModelShare(guaranteed=0.2))
    cost_s = busy.router.state.row_times.lane_s(busy.router.state.lanes[0], 0)
    arrive(busy, 3 / cost_s)
    arrive(light, 0.1 / cost_s)
    machine.tick()
    turns = machine.pools[0].turns
    contenders = Contender(busy, 1.0, 0.005), Contender(light, 2.0, 0.005)
    waited_s = []
    for _ in range(100):
        waited_s.append(0.0)
        while turns.choose(contenders) is busy:
            turns.charge(busy, 0.001, (busy, light))
            waited_s[-1] += 0.001
        turns.charge(light, 0.001, (light,))
        turns.charge(busy, 0.009, (busy,))
    assert max(waited_s) <= 0.006 + 1e-9
