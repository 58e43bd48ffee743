"""Explanations: they change no decision under any policy, and say what is then done."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.routing.test_router import BUDGET_S, ROWS, SERVERS, STEPS, step
from tests.planner.routing.worlds import BOTH, GPU_LANE, POLICIES, Owner, cpu_lanes, router

EVERY = ("priced", "mprec", "deeprecsys", "static:table@cpu", "static:hybrid@cpu")


@settings(max_examples=200, deadline=None)
@given(
    steps=STEPS,
    server=st.sampled_from(SERVERS),
    policy=st.sampled_from(EVERY),
    asked=st.lists(st.tuples(ROWS, BUDGET_S, st.booleans()), min_size=1, max_size=4),
    slow=st.sampled_from([1.0, 8.0]),
)
def test_any_sequence_of_operations_gives_the_same_decisions_when_it_is_explained(
    steps, server, policy, asked, slow
):
    def run(explained: bool) -> list:
        owner = Owner(router(*server, policy=policy))
        found: list = []
        policies = list(POLICIES)

        def look() -> None:
            if explained:
                for rows, budget_s, required in asked:
                    owner.router.explain(rows, budget_s, owner.now_s, required)
                owner.router.state(owner.now_s)

        for i, one in enumerate(steps):
            look()
            step(owner, one, policies)
            if i % 7 == 6:
                owner.router.tick(owner.now_s)
            look()
            owner.turn()
            for lane, dispatch in list(owner.running.items()):
                if dispatch.started_s + slow * dispatch.median_s <= owner.now_s:
                    owner.done(lane, slow * dispatch.median_s)
            found.append(owner.router.wake_s())
        found += [
            (d.lane, d.path, d.rows, d.reason, d.started_s, d.tail_s, d.probe) for d in owner.dispatches
        ]
        return [*found, *owner.ends.values()]

    assert run(explained=True) == run(explained=False)


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("budget_s", [0.0004, 0.002, 0.02])
@pytest.mark.parametrize("slow", [False, True])
def test_what_an_idle_server_explains_is_what_it_then_does(policy, budget_s, slow):
    owner = Owner(router(policy=policy, lanes=cpu_lanes(1)))
    for _ in range(8 if slow else 0):  # so that its models believe that nothing can be made
        owner.offer(23, 0.02)
        owner.turn()
        owner.now_s += 0.01
        owner.done(0, 0.01)
    told = owner.router.explain(23, budget_s, owner.now_s)
    json.dumps(told.as_dict())
    query = owner.offer(23, budget_s)
    owner.turn()
    if told.path is None:
        assert owner.ends[query] in ([], ["refused"], ["expired"])
        assert not owner.running
    else:
        assert owner.router.paths[query.path].name == told.path
        assert query.reason.value == told.reason


def test_explaining_books_no_load_under_mprec():
    def bound(explained: bool) -> list[str]:
        owner = Owner(router(BOTH, (GPU_LANE, *cpu_lanes(2)), policy="mprec"))
        found = []
        for _ in range(80):
            query = owner.offer(147, 0.003)
            found.append(owner.router.paths[query.path].name)
            if explained:
                owner.router.explain(147, 0.003, 0.0)
        return found

    assert len(set(bound(explained=False))) > 1
    assert bound(explained=True) == bound(explained=False)
