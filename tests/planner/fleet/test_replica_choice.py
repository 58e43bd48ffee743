from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.planner.fleet.replica_choice import NoReplica, ReplicaChoice


def chooser(waits: list[float], candidates: int = 2, dispatchers: int = 1) -> ReplicaChoice[int]:
    made: ReplicaChoice[int] = ReplicaChoice(Random(0), candidates, dispatchers=dispatchers)
    for name, wait_s in enumerate(waits):
        made.add(name, 0.0)
        made.report(name, 0.0, wait_s, 0.001)
    return made


def test_replica_that_would_answer_first_is_picked_among_all() -> None:
    made = chooser([0.03, 0.01, 0.02], candidates=3)
    assert {made.pick(0.0) for _ in range(50)} == {1}


def test_slowest_replica_is_never_picked_of_two_random_ones() -> None:
    made = chooser([0.03, 0.01, 0.02])
    picked = Counter(made.pick(0.0) for _ in range(600))
    assert picked[0] == 0
    # of three equally likely pairs two contain the fastest
    assert picked[1] == pytest.approx(400, abs=60)


def test_replicas_are_drawn_by_weight() -> None:
    made = chooser([0.0, 0.0], candidates=1)
    made.add(1, 0.0, weight=3.0)
    picked = Counter(made.pick(0.0) for _ in range(2000))
    assert picked[1] == pytest.approx(1500, abs=90)


def test_a_wait_falls_with_time_but_not_below_the_service_time() -> None:
    made = chooser([0.02])
    assert made.predicted_s(0, 0.015) == pytest.approx(0.006)
    assert made.predicted_s(0, 1.0) == pytest.approx(0.001)


def replayed(wait_s: float, since_s: float, sent: list[tuple[float, float]], now_s: float) -> float:
    """The wait at now_s of a replica that executes one query after another."""
    for at_s, work_s in sorted(sent):
        if at_s > since_s:
            wait_s = max(wait_s - (at_s - since_s), 0.0) + work_s
            since_s = at_s
    return max(wait_s - (now_s - since_s), 0.0)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_waits_are_those_of_a_replay_whatever_the_age_of_reports(data: st.DataObject) -> None:
    times = sorted(data.draw(st.lists(st.floats(0.001, 1), max_size=12, unique=True)))
    works = [data.draw(st.floats(0, 0.3)) for _ in times]
    delay_s = data.draw(st.sampled_from([0.0, 0.05, 0.4]))
    made = chooser([0.1])
    sent: list[tuple[float, float]] = []
    reported = [(0.0, 0.1)]
    for at_s, work_s in zip(times, works, strict=True):
        made.record_sent(0, at_s, work_s)
        sent.append((at_s, work_s))
        if data.draw(st.booleans()):
            # the replica saw what had been sent until then, and the report comes late
            seen_s = at_s - delay_s
            if seen_s > reported[-1][0]:
                wait_s = replayed(0.1, 0.0, [s for s in sent if s[0] <= seen_s], seen_s)
                reported.append((seen_s, wait_s))
                made.report(0, seen_s, wait_s, 0.001)
    now_s = 1.2
    assert made.predicted_s(0, now_s) == pytest.approx(replayed(0.1, 0.0, sent, now_s) + 0.001, abs=1e-9)


def test_an_older_report_than_the_last_is_ignored() -> None:
    made = chooser([0.0])
    made.report(0, 2.0, 0.5, 0.001)
    made.report(0, 1.0, 9.0, 0.001)
    assert made.predicted_s(0, 2.0) == pytest.approx(0.501)


def test_a_query_sent_to_a_replica_whose_clock_is_ahead_adds_only_its_work() -> None:
    made = chooser([0.0])
    made.report(0, 10.0, 1.0, 0.001)
    made.record_sent(0, 9.0, 0.5)
    assert made.predicted_s(0, 9.0) == pytest.approx(1.501)
    assert made.predicted_s(0, 10.5) == pytest.approx(1.001)


def test_a_query_stands_for_those_of_the_other_dispatchers() -> None:
    made = chooser([0.0], dispatchers=4)
    made.record_sent(0, 0.0, 0.01)
    assert made.predicted_s(0, 0.0) == pytest.approx(0.041)


def test_a_silent_replica_is_picked_only_if_all_are() -> None:
    made = chooser([0.0, 0.5, 0.5])
    made.report(1, 10.0, 0.5, 0.001)
    assert {made.pick(10.0) for _ in range(50)} == {1}
    assert {made.pick(99.0) for _ in range(50)} == {0, 1, 2}


def test_excluded_and_removed_replicas_are_not_picked() -> None:
    made = chooser([0.0, 0.1, 0.2])
    assert {made.pick(0.0, excluded={0, 1}) for _ in range(20)} == {2}
    made.remove(2)
    with pytest.raises(NoReplica, match="none of 2 replicas"):
        made.pick(0.0, excluded={0, 1})


def test_reports_of_unknown_replicas_are_ignored() -> None:
    made = chooser([0.0])
    made.report(7, 0.0, 0.0, 0.0)
    made.record_sent(7, 0.0, 1.0)
    made.remove(7)
    assert len(made) == 1


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        ReplicaChoice[int](Random(0), candidates=0)
    with pytest.raises(ValueError, match="must be positive"):
        chooser([0.0]).add(1, 0.0, weight=0.0)


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {
        "ReplicaChoice": ReplicaChoice,
        "random": random,
        "now_s": 1.0,
        "measured_s": 0.9,
    }
    exec(example, names)
    assert names["replica"] == "10.0.0.7:8000"
