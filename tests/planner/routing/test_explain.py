"""Explanations change no decision under any policy, and predict the decision."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.routing.random_events import BUDGET_S, ROWS, SERVERS, STEPS, step
from tests.planner.routing.servers import BOTH, GPU_LANE, POLICIES, RouterDriver, cpu_lanes, router

EVERY = ("priced", "mprec", "deeprecsys", "static:table@cpu", "static:hybrid@cpu")


@settings(max_examples=200, deadline=None)
@given(
    steps=STEPS,
    server=st.sampled_from(SERVERS),
    policy=st.sampled_from(EVERY),
    queries=st.lists(st.tuples(ROWS, BUDGET_S, st.booleans()), min_size=1, max_size=4),
    slow=st.sampled_from([1.0, 8.0]),
)
def test_any_sequence_of_operations_gives_the_same_decisions_when_it_is_explained(
    steps, server, policy, queries, slow
):
    def run(explained: bool) -> list:
        driver = RouterDriver(router(*server, policy=policy))
        found: list = []
        policies = list(POLICIES)

        def look() -> None:
            if explained:
                for rows, budget_s, best_only in queries:
                    driver.router.explain(rows, budget_s, driver.now_s, best_only)
                driver.router.snapshot()

        for i, one in enumerate(steps):
            look()
            step(driver, one, policies)
            if i % 7 == 6:
                driver.router.tick(driver.now_s)
            look()
            driver.turn()
            for lane, dispatch in list(driver.running.items()):
                if dispatch.started_s + slow * dispatch.median_s <= driver.now_s:
                    driver.done(lane, slow * dispatch.median_s)
            found.append(driver.router.wake_s())
        found += [
            (d.lane, d.path, d.rows, d.reason, d.started_s, d.tail_s, d.probe) for d in driver.dispatches
        ]
        return [*found, *driver.ends.values()]

    assert run(explained=True) == run(explained=False)


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("budget_s", [0.0004, 0.002, 0.02])
@pytest.mark.parametrize("slow", [False, True])
def test_an_idle_server_does_what_it_explained(policy, budget_s, slow):
    driver = RouterDriver(router(policy=policy, lanes=cpu_lanes(1)))
    for _ in range(8 if slow else 0):  # so that its models believe that nothing can be made
        driver.submit(23, 0.02)
        driver.turn()
        driver.now_s += 0.01
        driver.done(0, 0.01)
    explanation = driver.router.explain(23, budget_s, driver.now_s)
    json.dumps(explanation.as_dict())
    query = driver.submit(23, budget_s)
    driver.turn()
    if explanation.path is None:
        assert driver.ends[query] in ([], ["rejected"], ["expired"])
        assert not driver.running
    else:
        assert driver.router.state.path_specs[query.path].name == explanation.path
        assert query.reason.value == explanation.reason


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("rows", [4097, 10_000, 10**9 - 1])
def test_a_hypothetical_request_may_have_more_rows_than_any(policy, rows):
    driver = RouterDriver(router(policy=policy, lanes=cpu_lanes(1)))
    explanation = driver.router.explain(rows, 0.02, driver.now_s)
    assert explanation.rows == rows
    assert json.dumps(explanation.as_dict())


def test_explaining_records_no_load_under_mprec():
    def bound(explained: bool) -> list[str]:
        driver = RouterDriver(router(BOTH, (GPU_LANE, *cpu_lanes(2)), policy="mprec"))
        found = []
        for _ in range(80):
            query = driver.submit(147, 0.003)
            found.append(driver.router.state.path_specs[query.path].name)
            if explained:
                driver.router.explain(147, 0.003, 0.0)
        return found

    assert len(set(bound(explained=False))) > 1
    assert bound(explained=True) == bound(explained=False)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_explanation_changes_nothing_and_is_json(policy):
    driver = RouterDriver(router(policy=policy, lanes=cpu_lanes(1)))
    for _ in range(12):
        driver.submit(147, 0.02)
    driver.turn()
    before = driver.router.snapshot()
    pieces = list(driver.router.state.queue.pieces)
    explanation = driver.router.explain(23, 0.02, 0.0)
    json.dumps(explanation.as_dict())
    json.dumps(before.as_dict())
    assert driver.router.snapshot() == before
    assert driver.router.state.queue.pieces == pieces
    assert {c.path for c in explanation.candidates} == {p.name for p in driver.router.state.path_specs}


def test_an_explanation_predicts_the_decision():
    driver = RouterDriver(router())
    explanation = driver.router.explain(23, 0.1, 0.0)
    query = driver.submit(23, 0.1)
    driver.turn()
    assert explanation.path == driver.router.state.path_specs[query.path].name == "hybrid@cpu"
    assert driver.router.explain(4000, 0.001, 0.0).path is None
