"""Lanes of a real server that die or stall under load: everybody is answered, and the lanes come back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.results.outcome import Outcome
from polyrec.planner.plan import Plan, PlannedLane, save_plan
from polyrec.server.child import ServerProcess
from tests.forking import start

BODY = b'{"candidates": [{"item": "1"}, {}, {"item": "3"}]}'
MEANT = {200, 429, 503, 504}
COMES_BACK_S = 60


@pytest.fixture(scope="module")
def lanes(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of one path on two lanes in processes of their own."""
    folder = tmp_path_factory.mktemp("faults")
    executors = tuple(PlannedLane(name=f"cpu.{i}", kind="process") for i in range(2))
    path = plan.paths[0].model_copy(update={"bundle": Path(plan.paths[0].bundle).absolute()})
    changed = {"paths": (path,), "lanes": executors, "default_budget_ms": 2000.0}
    save_plan(plan.model_copy(update=changed), folder / "plan.json")
    with start({"plan": folder / "plan.json", "drain_grace_s": 0}) as child:
        yield child


def lanes_of(server: ServerProcess) -> list[dict[str, Any]]:
    page = httpx.get(f"{server.url}/v1/paths").json()
    routed = {lane["name"]: lane for lane in page["routing"]["lanes"]}
    return [lane | routed[lane["name"]] for lane in page["lanes"]]


def under_load(server: ServerProcess, act: Callable[[], None]) -> Outcome:
    """Three seconds of load, and what happens one second after its start."""
    due = np.arange(0, 3, 0.02)
    target = Target(f"{server.url}/v1/rank", {"Content-Type": "application/json"})
    load = load_of(target, due, 3.0, lambda i: BODY, budget_s=2.0)
    striker = threading.Timer(1.0, act)
    striker.start()
    try:
        return run(target, load, Limits(grace_s=COMES_BACK_S))
    finally:
        striker.join()


def answered(server: ServerProcess) -> bool:
    return httpx.post(f"{server.url}/v1/rank", content=BODY, timeout=COMES_BACK_S).status_code == 200


def wait_until(server: ServerProcess, true_of: Callable[[list[dict[str, Any]]], bool]) -> None:
    """Asks (with requests, which are what probes are made of) until it is so."""
    end = time.monotonic() + COMES_BACK_S
    while not true_of(lanes_of(server)):
        assert time.monotonic() < end, lanes_of(server)
        answered(server)


def test_a_killed_lane_costs_no_answer_and_restarts(lanes: ServerProcess) -> None:
    pid = lanes_of(lanes)[0]["pid"]
    outcome = under_load(lanes, lambda: os.kill(pid, signal.SIGKILL))
    assert not outcome.errors
    assert set(outcome.status.tolist()) <= MEANT
    assert Counter(outcome.status.tolist())[200] > 50
    wait_until(lanes, lambda now: all(lane["alive"] and lane["breaker"] == "closed" for lane in now))
    assert lanes_of(lanes)[0]["pid"] != pid
    text = httpx.get(f"{lanes.url}/metrics").text
    assert 'polyrec_lane_deaths_total{lane="cpu.0"} 1' in text
    events = [event["kind"] for event in httpx.get(f"{lanes.url}/v1/status").json()["events"]]
    assert events.index("lane_died") < events.index("lane_back")
    assert answered(lanes)


def test_a_lane_that_stalls_loses_its_work_and_gets_it_back(lanes: ServerProcess) -> None:
    pid = lanes_of(lanes)[1]["pid"]
    try:
        outcome = under_load(lanes, lambda: os.kill(pid, signal.SIGSTOP))
        assert not outcome.errors
        assert set(outcome.status.tolist()) <= MEANT
        assert Counter(outcome.status.tolist())[200] > 50
        assert answered(lanes)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lanes, lambda now: all(lane["breaker"] == "closed" for lane in now))
    assert lanes_of(lanes)[1]["pid"] == pid
    events = [event["kind"] for event in httpx.get(f"{lanes.url}/v1/status").json()["events"]]
    assert events.index("lane_stalled") < events.index("lane_resumed")


def test_a_server_whose_lanes_have_all_stalled_is_not_ready_until_one_answers(lanes: ServerProcess) -> None:
    def ready() -> tuple[int, int, str]:
        page, oip = (httpx.get(lanes.url + path) for path in ("/readyz", "/v2/health/ready"))
        return page.status_code, oip.status_code, page.json().get("error", "")

    first, second = (lane["pid"] for lane in lanes_of(lanes))
    try:
        for pid in (first, second):
            os.kill(pid, signal.SIGSTOP)
        # the second lane gets a request once the first has stalled
        wait_until(lanes, lambda now: all(lane["breaker"] == "open" for lane in now))
        wait_until(lanes, lambda _: ready() == (503, 503, "all lanes are stalled"))
        os.kill(second, signal.SIGCONT)
        wait_until(lanes, lambda now: [lane["breaker"] for lane in now] == ["open", "closed"])
        # the first has been stalled for longer than is needed if it were alone
        assert ready() == (200, 200, "")
        assert answered(lanes)
    finally:
        for pid in (first, second):
            os.kill(pid, signal.SIGCONT)
    wait_until(lanes, lambda now: all(lane["breaker"] == "closed" for lane in now))
    assert ready() == (200, 200, "")
    assert [lane["pid"] for lane in lanes_of(lanes)] == [first, second]


def test_a_server_without_any_lane_refuses_until_one_is_back(lanes: ServerProcess) -> None:
    for lane in lanes_of(lanes):
        os.kill(lane["pid"], signal.SIGKILL)
    seen: set[int] = set()
    end = time.monotonic() + COMES_BACK_S
    while 200 not in seen or not all(lane["alive"] for lane in lanes_of(lanes)):
        assert time.monotonic() < end
        seen.add(httpx.post(f"{lanes.url}/v1/rank", content=BODY, timeout=COMES_BACK_S).status_code)
    assert seen <= MEANT
    assert answered(lanes)
