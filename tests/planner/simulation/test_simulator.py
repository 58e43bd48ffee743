"""The simulator: the router under random traffic and faults, in virtual time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.query import Dispatch, Misses
from polyrec.planner.simulation.costs import BatchCost, Costs, RowReads
from polyrec.planner.simulation.execution import ExecutionTimes
from polyrec.planner.simulation.faults import Fault, FaultError, parse_fault
from polyrec.planner.simulation.outcomes import Outcomes, Status
from polyrec.planner.simulation.simulator import Simulator, Slowdown, no_slowdown
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes
from tests.planner.routing.servers import BOTH, CPU, GPU_LANE, POLICIES, cpu_lanes, line

SERVERS = {
    "inline": (CPU, cpu_lanes(1, "inline")),
    "lanes": (CPU, cpu_lanes(3)),
    "gpu": (BOTH, (GPU_LANE, *cpu_lanes(2))),
}


def simulator(
    server: str,
    rate: float,
    seconds: float = 1.0,
    policy: str = "priced",
    budget_s: float = 0.02,
    faults: tuple[Fault, ...] = (),
    seed: int = 0,
    arrivals: Arrivals | None = None,
    **routing: float,
) -> Simulator:
    rng = np.random.default_rng(seed)
    times = arrival_times(arrivals or Arrivals(), rate, seconds, rng)
    rows = Sizes(kind="heavy", mean=60).sample(times.size, rng)
    paths, lanes = SERVERS[server]
    trace = Trace(paths, Limits(), times, rows, budget_s)
    return Simulator(trace, lanes, Routing(policy=policy, **routing), rng, faults)


FAULTS = st.lists(
    st.builds(
        lambda kind, lane, begin, length, factor: Fault(
            kind, lane, begin, begin + length, factor if kind == "slow" else 1.0
        ),
        st.sampled_from(["slow", "stall", "kill"]),
        st.just(0),
        st.floats(0.0, 0.15),
        st.floats(0.01, 0.1),
        st.floats(2.0, 20.0),
    ),
    max_size=1,
)


@settings(max_examples=40, deadline=None)
@given(
    server=st.sampled_from(list(SERVERS)),
    policy=st.sampled_from(POLICIES),
    rate=st.floats(50, 8000),
    faults=FAULTS,
    front=st.sampled_from([0.0, 1e-4]),
    seed=st.integers(0, 1000),
)
def test_every_query_ends_once_and_rows_return_to_zero(server, policy, rate, faults, front, seed):
    sim = simulator(server, rate, 0.25, policy, faults=tuple(faults), seed=seed, query_s=front)
    outcomes = sim.run()
    assert (outcomes.status != Status.PENDING).all()
    assert sim.router.state.queue.rows == 0
    assert list(sim.router.state.queue.unsettled()) == []
    answered = outcomes.status == Status.ANSWERED
    assert (outcomes.path[answered] >= 0).all()
    assert (outcomes.finish_s >= outcomes.arrival_s).all()


@settings(max_examples=20, deadline=None)
@given(policy=st.sampled_from(POLICIES), rate=st.floats(500, 12000), seed=st.integers(0, 1000))
def test_nothing_is_answered_or_dropped_after_its_deadline_where_lanes_are_not_inline(policy, rate, seed):
    outcomes = simulator("lanes", rate, 0.25, policy, seed=seed).run()
    dropped = outcomes.status == Status.EXPIRED
    assert (outcomes.finish_s[dropped] <= outcomes.deadline_s[dropped] + 2e-6).all()
    answered = outcomes.status == Status.ANSWERED
    assert (outcomes.finish_s[answered] <= outcomes.deadline_s[answered] + 2e-6).all()


def test_same_seed_gives_same_outcomes():
    one, other = (simulator("gpu", 3000, 0.3).run() for _ in range(2))
    assert (one.finish_s == other.finish_s).all()
    assert (one.path == other.path).all()


def test_quality_bends_with_load_and_answers_stay_in_time():
    light, heavy = (simulator("lanes", rate, 1.5).run().figures(0.5) for rate in (30, 6000))
    assert light.quality == pytest.approx(0.79, abs=2e-4)
    assert light.in_budget == 1.0
    assert heavy.quality < 0.785
    assert heavy.in_budget > 0.995


@pytest.mark.parametrize("server", list(SERVERS))
def test_overload_is_rejected_and_goodput_stays(server):
    rates = {"inline": 4000, "lanes": 12_000, "gpu": 25_000}
    full, over = (simulator(server, k * rates[server], 0.8).run().figures(0.3) for k in (1, 3))
    assert over.goodput > 0.93 * full.goodput
    assert over.expired < 0.03
    assert over.refused > 0.3


def test_the_front_shares_the_core_of_an_inline_lane():
    free, busy = (
        simulator("inline", 3000, 0.8, query_s=cost).run().figures(0.3).goodput for cost in (0.0, 4e-4)
    )
    assert busy < 0.85 * free


CERTAIN = PathSpec("table@cpu", "cpu", 0.78, line(1e-4, 1e-6, tail=1.0))


def took(
    arrivals: list[float], rows: int, costs: Costs, seed: int = 0, slowdown: Slowdown = no_slowdown
) -> list[float]:
    """Seconds from arrival to answer on one inline lane whose batches take exactly what the model says."""
    times = np.array(arrivals)
    rng = np.random.default_rng(seed)
    trace = Trace((CERTAIN,), Limits(), times, np.full(times.size, rows), 1.0)
    lanes, routing = cpu_lanes(1, "inline"), Routing(policy="static:table@cpu")
    made = Simulator(trace, lanes, routing, rng, costs=costs, slowdown=slowdown).run()
    assert (made.status == Status.ANSWERED).all()
    latency: list[float] = (made.finish_s - made.arrival_s).tolist()
    return latency


@given(
    wake=st.floats(0, 1e-4),
    turn=st.floats(1e-5, 1e-3),
    query=st.floats(0, 1e-3),
    batch=st.floats(-5e-5, 1e-3),
)
def test_a_single_query_takes_the_sum_of_its_costs(wake, turn, query, batch):
    costs = Costs(
        wake_s=wake,
        turn_s=turn,
        after_s=1e-5,
        query_s=query,
        row_s=1e-6,
        batches={"table@cpu": BatchCost(batch_s=batch, query_s=0.5)},
    )
    expected = wake + (turn - 1e-5) + query + 30e-6 + (1.3e-4 + batch)
    assert took([0.01, 0.5], 30, costs) == pytest.approx([expected, expected])


def test_waiting_queries_share_the_next_batch_at_a_cost_each():
    crowd = [0.01, *np.linspace(0.01002, 0.01008, 7)]
    plain, dearer = (
        took(crowd, 10, Costs(batches={"table@cpu": BatchCost(query_s=each)})) for each in (0.0, 1e-4)
    )
    assert dearer[0] == pytest.approx(plain[0])
    # the second batch has the seven that came meanwhile: six beyond its first
    assert np.subtract(dearer[1:], plain[1:]) == pytest.approx([6e-4] * 7)


def test_a_sleep_costs_the_next_query_by_its_length():
    costs = Costs(cooled=((0.1, 1e-4), (0.3, 5e-4)))
    base = took([0.01], 10, Costs())[0]
    late = took([0.05, 0.25, 0.95], 10, costs)
    # ticks of the control loop, ten a second, end a sleep as well
    assert late[0] - base == pytest.approx(0.5e-4, rel=0.01)
    assert all(0 <= each - base <= 5e-4 for each in late)


@given(factor=st.floats(0.5, 4), query=st.floats(0, 1e-4), wake=st.floats(0, 1e-4), batch=st.floats(0, 1e-4))
def test_a_slowdown_scales_all_times(factor, query, wake, batch):
    costs = Costs(
        wake_s=wake,
        cooled=((0.05, 2e-5),),
        turn_s=1e-4,
        query_s=query,
        row_s=1e-7,
        tick_s=1e-4,
        batches={"table@cpu": BatchCost(batch_s=batch, query_s=1e-5)},
    )
    arrivals = [0.01] * 3
    slowed = took(arrivals, 10, costs, slowdown=lambda now_s: factor)
    assert slowed == pytest.approx([factor * seconds for seconds in took(arrivals, 10, costs)])


def test_a_slowdown_may_change_over_time():
    arrivals = [0.01, 0.21, 0.41]

    def slowdown(now_s: float) -> float:
        return 1.0 if now_s < 0.2 else 2.0 if now_s < 0.4 else 0.5

    one, two, half = took(arrivals, 10, Costs(query_s=1e-4, turn_s=1e-4), slowdown=slowdown)
    assert (two, half) == pytest.approx((2 * one, one / 2))


def test_preemptions_delay_a_busy_loop_but_not_an_idle_one():
    held = Costs(held_rate=500.0, held_s=1e-3)
    busy = np.arange(0.0, 1.0, 1.2e-4).tolist()
    idle = np.arange(0.0, 1.0, 0.05).tolist()
    assert np.mean(took(busy, 10, held)) > 2 * np.mean(took(busy, 10, Costs()))
    assert np.median(took(idle, 10, held)) == pytest.approx(np.median(took(idle, 10, Costs())))


def served(rate, seconds, rows, costs, since_s=0.0):
    """Figures of Poisson arrivals of `rows` rows with a budget of 20 ms, on a loop with these costs."""
    times = arrival_times(Arrivals(), rate, seconds, np.random.default_rng(3))
    paths, lanes = SERVERS["inline"]
    trace = Trace(paths, Limits(), times, np.full(times.size, rows), 0.02)
    routing, rng = Routing(query_s=costs.query_s), np.random.default_rng(4)
    return Simulator(trace, lanes, routing, rng, costs=costs).run().figures(since_s)


def test_rejections_take_loop_time():
    free, dear = (
        served(12_000, 0.5, 60, Costs(query_s=1e-4, refuse_s=refuse_s), 0.2) for refuse_s in (0.0, 3e-4)
    )
    assert free.refused > 0.2
    assert dear.goodput < 0.7 * free.goodput


def test_requests_read_after_a_delay_longer_than_a_budget_are_answered():
    held = served(3_000, 1.0, 10, Costs(query_s=5e-5, held_rate=5.0, held_s=0.1))
    assert held.goodput > 0.6 * served(3_000, 1.0, 10, Costs(query_s=5e-5)).goodput


def rows_on(sim: Simulator, lane: int, begin_s: float, end_s: float) -> int:
    """Rows that a lane was given in a span, by a simulator whose router was watched."""
    return sum(d.rows for d in sim.dispatched if d.lane == lane and begin_s <= d.started_s < end_s)


class RecordingTimes:
    """Records every batch whose service time is drawn."""

    def __init__(self, times: ExecutionTimes) -> None:
        self.times = times
        self.dispatched: list[Dispatch] = []

    def draw_s(self, dispatch: Dispatch, now_s: float, slowdown: float) -> float:
        self.dispatched.append(dispatch)
        return self.times.draw_s(dispatch, now_s, slowdown)


def watched(rate: float, seconds: float, faults: tuple[Fault, ...], budget_s: float = 0.02):
    rng = np.random.default_rng(4)
    times = arrival_times(Arrivals(), rate, seconds, rng)
    rows = Sizes(kind="fixed", mean=100).sample(times.size, rng)
    paths, lanes = SERVERS["lanes"]
    sim = Simulator(Trace(paths, Limits(), times, rows, budget_s), lanes, Routing(), rng, faults)
    sim._execution = recording = RecordingTimes(sim._execution)
    return recording, sim.run()


def missed(outcomes: Outcomes, begin_s: float, end_s: float) -> int:
    inside = (outcomes.arrival_s >= begin_s) & (outcomes.arrival_s < end_s)
    return int((outcomes.status[inside] != Status.ANSWERED).sum())


def test_a_slowed_lane_loses_work_within_200_ms_and_gets_it_back():
    sim, outcomes = watched(3000, 3.0, (Fault("slow", 1, 1.0, 2.0, 10.0),))
    usual = sum(rows_on(sim, lane, 0.5, 1.0) for lane in (0, 1)) / 2
    assert rows_on(sim, 1, 1.2, 1.7) < 0.15 * usual
    assert rows_on(sim, 1, 2.3, 2.8) > 0.4 * usual  # lanes that are equally fast share by chance
    assert missed(outcomes, 0.0, 1.0) == 0
    assert missed(outcomes, 1.0, 1.2) <= 12
    assert missed(outcomes, 1.2, 3.0) <= 2


def test_a_stalled_lane_is_out_its_queries_go_elsewhere_and_it_comes_back():
    sim, outcomes = watched(3000, 3.0, (Fault("stall", 1, 1.0, 2.0),), budget_s=0.05)
    usual = rows_on(sim, 1, 0.5, 1.0)
    assert rows_on(sim, 1, 1.05, 1.95) == 0
    assert rows_on(sim, 1, 2.2, 2.7) > 0.6 * usual
    assert missed(outcomes, 0.0, 3.0) <= 1
    late = outcomes.finish_s - outcomes.deadline_s
    assert late.max() <= 2e-6


def test_a_killed_lane_is_out_at_once_and_back_by_a_probe():
    sim, outcomes = watched(3000, 3.0, (Fault("kill", 1, 1.0, 2.0),))
    usual = sum(rows_on(sim, lane, 0.5, 1.0) for lane in (0, 1)) / 2
    assert rows_on(sim, 1, 1.0, 2.0) == 0
    assert rows_on(sim, 1, 2.1, 2.6) > 0.5 * usual
    assert missed(outcomes, 0.0, 3.0) == 0


def test_a_lane_whose_process_never_returns_leaves_the_rest_working():
    _, outcomes = watched(2000, 1.5, (Fault("kill", 0, 0.5, float("inf")),))
    assert missed(outcomes, 0.0, 1.5) == 0


def test_large_queries_of_which_a_stalled_lane_has_a_part_end():
    faults = tuple(Fault("stall", lane, at, at + 0.08) for at in (0.1, 0.4, 0.7) for lane in range(3))
    times = np.linspace(0, 1, 50)
    trace = Trace(CPU, Limits(max_batch_rows=512), times, np.full(times.size, 3000), 0.15)
    outcomes = Simulator(trace, cpu_lanes(3), Routing(), np.random.default_rng(0), faults).run()
    assert (outcomes.status != Status.PENDING).all()


def test_the_only_lane_stalled_drops_at_deadlines_and_recovers():
    rng = np.random.default_rng(1)
    times = arrival_times(Arrivals(), 300, 2.0, rng)
    rows = Sizes(kind="fixed", mean=50).sample(times.size, rng)
    fault = Fault("stall", 0, 0.5, 1.0)
    sim = Simulator(Trace(CPU, Limits(), times, rows, 0.05), cpu_lanes(1), Routing(), rng, (fault,))
    outcomes = sim.run()
    assert missed(outcomes, 0.0, 0.45) == 0
    assert missed(outcomes, 0.55, 0.94) > 50
    assert missed(outcomes, 1.3, 2.0) == 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("slow:gpu0:10:2-4", Fault("slow", 0, 2.0, 4.0, 10.0)),
        ("stall:cuda:0:1.5-2", Fault("stall", 1, 1.5, 2.0)),
        ("kill:gpu0:3", Fault("kill", 0, 3.0, float("inf"))),
        ("first:cuda:0:50:0", Fault("first", 1, 0.0, float("inf"), 50.0)),
        ("stop:1-1.3", Fault("stop", -1, 1.0, 1.3)),
        ("neighbor:2", Fault("neighbor", -1, 2.0, float("inf"))),
    ],
)
def test_faults_are_read(text, fault):
    assert parse_fault(text, ["gpu0", "cuda:0"]) == fault


@pytest.mark.parametrize(
    "text",
    [
        *("slow:gpu0:2-4", "first:gpu0:1", "stop:1", "stop:gpu0:1-2", "neighbor:2-1"),
        *("melt:gpu0:1-2", "stall:cpu:1-2", "stall:gpu0:2-1", "stall:gpu0:1", "slow:gpu0:x:1-2"),
    ],
)
def test_bad_faults_raise_one_line(text):
    with pytest.raises(FaultError, match="fault") as caught:
        parse_fault(text, ["gpu0"])
    assert "\n" not in str(caught.value)


READS = RowReads(share=0.3, misses=20.0, read_s=2e-3, miss_s=1e-4, tail=2.0)


def cold_simulator(server: str, reads: RowReads | None = READS) -> Simulator:
    """Arrivals of which some miss rows."""
    rng = np.random.default_rng(0)
    times = arrival_times(Arrivals(), 300.0, 2.0, rng)
    rows = Sizes(kind="fixed", mean=20).sample(times.size, rng)
    routing, costs = Routing(policy="static:table@cpu"), Costs(reads=reads)
    paths, lanes = SERVERS[server]
    return Simulator(Trace(paths, Limits(), times, rows, 0.05), lanes, routing, rng, costs=costs)


def latencies(simulator: Simulator) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Returns the seconds to each answer, and which queries had all rows in memory."""
    outcomes = simulator.run()
    assert (outcomes.status == Status.ANSWERED).all()
    pages = [any(simulator._reads.misses(i)) for i in range(outcomes.rows.size)]
    return outcomes.finish_s - outcomes.arrival_s, ~np.array(pages)


@pytest.mark.parametrize("server", ["lanes", "inline"])
def test_hot_queries_do_not_wait_for_the_reads_of_cold_ones(server):
    took_s, hot = latencies(cold_simulator(server))
    assert 0.6 < hot.mean() < 0.8
    assert took_s[~hot].min() > READS.read_s / READS.tail**2
    in_memory_s, _ = latencies(cold_simulator(server, reads=None))
    assert np.quantile(took_s[hot], 0.99) < 1.2 * np.quantile(in_memory_s, 0.99)


def test_simulated_reads_are_learned():
    simulator = cold_simulator("lanes")
    simulator.run()
    tail_s = READS.tail * (READS.read_s + 20 * READS.miss_s)
    assert simulator.router.state.reads.tail_s(Misses(20)) == pytest.approx(tail_s, rel=0.6)
    assert not simulator.router.state.queue.held
