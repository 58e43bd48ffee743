"""The record of an iteration goes from step to step, and says where the next one begins."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.loop.iteration import (
    STEPS,
    Iteration,
    LoopError,
    State,
    StepResult,
    Verdict,
    after,
    dropped,
    failed,
    forced,
)

BEGUN = Iteration(number=3, began=100.0, since="s", until="u", serving="v1", step_began=100.0)
GO = StepResult(verdict="go", reason="well")


def after_steps(steps: int, last: Any = "canary", **figures: Any) -> Iteration:
    iteration = BEGUN
    for n in range(steps):
        iteration = after(iteration, GO.model_copy(update={"figures": figures}), 101.0 + n, last)
    return iteration


def test_steps_follow_one_another_to_the_last_one() -> None:
    assert [after_steps(n).step for n in range(5)] == list(STEPS)
    assert after_steps(5).state == "promoted"
    assert after_steps(4, "publish").state == "published"
    assert [(d.step, d.began, d.ended) for d in after_steps(2).done] == [
        ("check", 100.0, 101.0),
        ("train", 101.0, 102.0),
    ]


@pytest.mark.parametrize(
    ("verdict", "state"), [("wait", "waiting"), ("hold", "held"), ("roll_back", "rolled_back")]
)
def test_another_verdict_ends_the_iteration_with_its_reason(verdict: Verdict, state: State) -> None:
    ended = after(after_steps(2), StepResult(verdict=verdict, reason="why"), 9.0, "canary")
    assert (ended.state, ended.step, ended.reason) == (state, "evaluate", "why")


def test_the_next_one_takes_the_rows_that_were_measured_and_not_learned() -> None:
    assert after_steps(5, learned_until="cut").next_since == "cut"
    assert after_steps(5).next_since == "u"


@pytest.mark.parametrize(("rows", "since"), [("kept", "s"), ("left out", "u")])
def test_rows_of_a_held_one_are_kept_or_left_out(rows: Any, since: str) -> None:
    ended = after(after_steps(2), StepResult(verdict="hold", reason="why", rows=rows), 9.0, "canary")
    assert (ended.next_since, ended.next_number) == (since, 4)
    assert dropped(after_steps(2)).next_since == "u"
    assert dropped(forced(ended, 10.0)).next_since == "u"


def test_one_dropped_for_another_plan_leaves_its_rows_to_the_next_one() -> None:
    ended = dropped(after_steps(2), "another plan", "kept")
    assert (ended.state, ended.reason, ended.next_since) == ("dropped", "another plan", "s")


def test_one_goes_on_under_the_plan_it_began_with_or_wrote_itself() -> None:
    """Its own is that of a loop killed between plan and record."""
    own = [after_steps(steps, version="v2").belongs_to("v2") for steps in range(5)]
    assert own == [False, False, False, True, True]
    assert all(after_steps(steps, version="v2").belongs_to("v1") for steps in range(5))
    assert not any(after_steps(steps, version="v2").belongs_to("v3") for steps in range(5))


def test_figures_are_those_of_the_last_execution_of_a_step() -> None:
    iteration = BEGUN
    back = StepResult(verdict="roll_back", reason="slow", figures={"psi": 1})
    for n, result in enumerate((*[GO.model_copy(update={"figures": {"n": n}}) for n in range(4)], back)):
        iteration = after(iteration, result, 101.0 + n, "canary")
    assert [iteration.figures(step) for step in STEPS] == [*({"n": n} for n in range(4)), {"psi": 1}]
    again = after(forced(iteration, 110.0), back.model_copy(update={"figures": {"psi": 2}}), 111.0, "canary")
    assert again.figures("canary") == {"psi": 2}
    assert BEGUN.figures("check") == {}


def test_one_that_waited_leaves_its_number_and_its_rows() -> None:
    ended = after(BEGUN, StepResult(verdict="wait", reason="few", rows="kept"), 9.0, "canary")
    assert (ended.next_number, ended.next_since) == (3, "s")


def test_a_forced_one_goes_on_after_the_step_that_held_it() -> None:
    held = after(after_steps(2), StepResult(verdict="hold", reason="why"), 9.0, "canary")
    again = forced(failed(held, "not reached"), 10.0)
    assert (again.error, again.attempts) == (None, 0)
    assert (again.state, again.step, again.step_began, again.forced) == (
        "running",
        "publish",
        10.0,
        ("evaluate",),
    )


@pytest.mark.parametrize(("verdict", "state"), [("hold", "held"), ("roll_back", "rolled_back")])
def test_a_forced_canary_is_tried_again_and_is_promoted_only_if_the_server_did(
    verdict: Verdict, state: State
) -> None:
    stopped = StepResult(verdict=verdict, reason="why")
    again = forced(after(after_steps(4), stopped, 9.0, "canary"), 10.0)
    assert (again.state, again.step) == ("running", "canary")
    assert after(again, stopped, 11.0, "canary").state == state
    assert after(again, GO, 11.0, "canary").state == "promoted"


@pytest.mark.parametrize("state", ["running", "promoted", "published", "dropped"])
def test_only_stopped_iterations_can_be_forced(state: State) -> None:
    with pytest.raises(LoopError, match=f"iteration 3 is {state}"):
        forced(BEGUN.model_copy(update={"state": state}), 1.0)


def test_a_failure_stays_until_the_step_succeeds() -> None:
    twice = failed(failed(BEGUN, "disk full"), "disk full")
    assert (twice.state, twice.attempts, twice.reason) == ("running", 2, "disk full")
    then = after(twice, GO, 5.0, "canary")
    assert (then.attempts, then.error, then.reason) == (0, None, "well")


VERDICTS = st.sampled_from(get_args(Verdict))


@given(st.lists(st.tuples(VERDICTS, st.booleans()), min_size=1, max_size=12))
def test_whatever_happens_steps_are_executed_in_order_and_the_record_is_read_back(events: Any) -> None:
    iteration = BEGUN
    for verdict, force in events:
        if iteration.state == "running":
            iteration = after(iteration, StepResult(verdict=verdict, reason="r"), 1.0, "canary")
        elif force and iteration.state in ("waiting", "held", "rolled_back") and iteration.step in STEPS[:-1]:
            iteration = forced(iteration, 2.0)
        assert Iteration.model_validate_json(iteration.model_dump_json()) == iteration
    order = [STEPS.index(done.step) for done in iteration.done]
    assert order == sorted(order)
