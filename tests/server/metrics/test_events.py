from __future__ import annotations

import pytest

from polyrec.server.metrics.events import (
    CALM_SAMPLES,
    KEPT,
    MIN_REJECTED,
    STALL_S,
    Events,
    LossDetector,
    Overload,
    Stalls,
)
from tests.planner.routing.servers import RouterDriver, cpu_lanes, router


def texts(events: Events) -> list[str]:
    return [event.text for event in events.since(-1)]


def test_events_are_given_in_seconds_since_the_start_and_the_oldest_are_dropped() -> None:
    events = Events(started_s=1000)
    for i in range(KEPT + 1):
        events.add(1001 + i, "reload", str(i))
    assert texts(events) == [str(i) for i in range(1, KEPT + 1)]
    assert events.since(KEPT) == [event for event in events.since(-1) if event.t == KEPT + 1]


def test_an_overload_begins_once_and_ends_when_it_was_calm_for_a_while() -> None:
    events = Events(0)
    overload = Overload(events)
    counted = rejected = 0.0
    for now_s in range(0, 20, 2):
        counted, rejected = counted + 1000, rejected + (400 if 4 <= now_s < 10 else 10)
        overload.record(now_s, counted, rejected)
    began, ended = events.since(-1)
    assert (began.kind, began.t) == ("overload_began", 4)
    assert "40% of requests" in began.text
    # at 8 the last rejections came; the third calm sample is that of 14
    assert (ended.kind, ended.t) == ("overload_ended", 8 + 2 * CALM_SAMPLES)
    assert ended.text.endswith("after about 6 s")


def test_an_overload_has_not_lasted_for_the_idle_time_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    overload = Overload(Events(0))
    overload.record(10, 0, 0)
    overload.record(12, 1000, 400)
    overload.record(14, 2000, 800)
    for now_s in (60, 62, 64):  # no samples while idle
        overload.record(now_s, 2000, 800)
    assert caplog.messages[-1] == "overload ended after about 4 s"


def test_an_overload_has_not_lasted_for_the_idle_time_before_it(caplog: pytest.LogCaptureFixture) -> None:
    overload = Overload(Events(0))
    overload.record(10, 0, 0)
    overload.record(3610, 1000, 400)
    for now_s in (3612, 3614, 3616):
        overload.record(now_s, 2000, 400)
    assert caplog.messages[-1] == "overload ended after about 2 s"


def test_an_overload_is_in_the_log_which_outlives_the_server(caplog: pytest.LogCaptureFixture) -> None:
    overload = Overload(Events(0))
    overload.record(0, 0, 0)
    for now_s in range(2, 3 + CALM_SAMPLES):
        overload.record(now_s, 1000 * (now_s - 1), 400)
    assert caplog.messages == [
        "overload began: 40% of requests rejected or expired",
        "overload ended after about 2 s",
    ]


def test_a_short_calm_does_not_end_an_overload() -> None:
    events = Events(0)
    overload = Overload(events)
    for now_s, rejected in enumerate((100, 100, 200, 200, 300, 300)):
        overload.record(now_s, 1000 * (now_s + 1), rejected)
    assert [event.kind for event in events.since(-1)] == ["overload_began"]


def test_a_few_requests_with_impossible_budgets_are_no_overload() -> None:
    events = Events(0)
    Overload(events).record(2, counted=20, rejected=MIN_REJECTED - 1)
    Overload(events).record(2, counted=100_000, rejected=4_000)
    assert texts(events) == []


def losing(events: Events) -> LossDetector:
    return LossDetector(events, ("rows_lost", "lost"), ("rows_found", "{lost} were lost"), calm=2)


def test_a_loss_begins_once_and_ends_when_things_are_kept_for_a_while() -> None:
    events = Events(0)
    loss = losing(events)
    for now_s, (lost, kept) in enumerate([(0, 9), (5, 9), (1200, 20), (1200, 30), (1201, 40), (1201, 50)]):
        loss.record(now_s, lost, kept)
    assert [(event.t, event.kind) for event in events.since(-1)] == [(1, "rows_lost")]
    loss.record(6, 1201, 60)
    assert [(event.t, event.text) for event in events.since(1)] == [(6, "1,201 were lost")]
    loss.record(7, 1203, 60)
    assert [(event.t, event.kind) for event in events.since(6)] == [(7, "rows_lost")]


def test_a_loss_does_not_end_while_nothing_is_asked() -> None:
    events = Events(0)
    loss = losing(events)
    for now_s in range(20):
        loss.record(now_s, 5, 9)
    assert texts(events) == ["lost"]


def test_a_lane_that_does_not_return_a_batch_is_told_once_and_again_when_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver, events = RouterDriver(router(lanes=cpu_lanes(1), policy="static:table@cpu")), Events(0)
    stalls, (lane,) = Stalls(events), driver.router.state.lanes

    def tick(now_s: float) -> None:
        driver.now_s = now_s
        driver.turn()
        stalls.record(now_s, [("cpu", lane)])

    driver.submit(10, 10)
    for now_s in (0, STALL_S / 2, STALL_S, 3 * STALL_S):
        tick(now_s)
    driver.done(0)
    tick(4 * STALL_S)
    tick(5 * STALL_S)
    assert texts(events) == [
        "lane cpu stalled: a batch has not returned for 0.5 s; until it does, the lane gets no work",
        "lane cpu returned its batch after 2.0 s",
    ]
    assert caplog.messages == texts(events)


def test_a_stalled_lane_that_dies_has_returned_nothing() -> None:
    driver, events = RouterDriver(router(lanes=cpu_lanes(1), policy="static:table@cpu")), Events(0)
    stalls, (lane,) = Stalls(events), driver.router.state.lanes
    driver.submit(10, 10)
    for driver.now_s in (0.0, STALL_S / 2):
        driver.turn()
    stalls.record(STALL_S, [("cpu", lane)])
    driver.router.lane_down(0)
    stalls.record(2 * STALL_S, [("cpu", lane)])
    assert [event.kind for event in events.since(-1)] == ["lane_stalled"]


def test_a_stalled_lane_that_a_reload_replaces_has_returned_nothing() -> None:
    driver, events = RouterDriver(router(lanes=cpu_lanes(1), policy="static:table@cpu")), Events(0)
    stalls, (lane,) = Stalls(events), driver.router.state.lanes
    driver.submit(10, 10)
    for driver.now_s in (0.0, STALL_S / 2):
        driver.turn()
    stalls.record(STALL_S, [("cpu", lane)])
    (other,) = router(lanes=cpu_lanes(1), policy="static:table@cpu").state.lanes
    stalls.record(2 * STALL_S, [("cpu", other)])
    assert [event.kind for event in events.since(-1)] == ["lane_stalled"]
