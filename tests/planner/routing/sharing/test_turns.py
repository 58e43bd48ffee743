"""Turns: by deadline, and none falls behind its share by more than is tolerated."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.planner.routing.sharing.turns import Contender, Turns


def turns(shares: list[float]) -> Turns[int]:
    made: Turns[int] = Turns()
    made.shares = dict(enumerate(shares))
    return made


def test_the_most_urgent_goes_first_within_what_is_tolerated():
    made = turns([0.5, 0.5])
    order = []
    for _ in range(20):
        chosen = made.choose([Contender(0, 1.0, 0.004), Contender(1, 2.0, 0.004)])
        made.charge(chosen, 0.001, (0, 1))
        order.append(chosen)
    assert order[:5] == [0] * 5
    assert 8 <= order.count(1) <= 10  # later it is as fair as batches allow
    assert order[-10:].count(1) == 5


@settings(max_examples=100, deadline=None)
@given(
    shares=st.lists(st.floats(0.05, 1.0), min_size=2, max_size=4),
    seconds=st.lists(st.floats(1e-4, 0.02), min_size=50, max_size=200),
    urgent=st.integers(0, 3),
    tolerated_s=st.floats(0.0, 0.02),
)
def test_lane_time_follows_shares_within_a_bound(shares, seconds, urgent, tolerated_s):
    made = turns(shares)
    models = range(len(shares))
    used = [0.0] * len(shares)
    for took in seconds:
        contenders = [Contender(m, 0.0 if m == urgent else 1.0, tolerated_s) for m in models]
        chosen = made.choose(contenders)
        made.charge(chosen, took, models)
        used[chosen] += took
    normal = [u / s for u, s in zip(used, shares, strict=True)]
    longest = max(seconds)
    for m in models:
        # start-time fair queuing's bound, and the time that the furthest behind tolerates, in its share
        bound = tolerated_s / min(shares) + max(longest / s for s in shares) + longest / shares[m]
        assert max(normal) - normal[m] <= bound + 1e-9


@pytest.mark.parametrize("urgent", [0, 1])
def test_the_most_urgent_goes_first_however_long_both_have_run(urgent):
    made = turns([0.5, 0.5])
    for _ in range(100):
        for model in (0, 1):
            made.charge(model, 0.01, (0, 1))
    contenders = [Contender(urgent, 1.0, 0.004), Contender(1 - urgent, 2.0, 0.004)]
    assert made.choose(sorted(contenders, key=lambda c: c.model)) == urgent


def test_unused_time_is_not_saved():
    made = turns([0.5, 0.5])
    for _ in range(100):
        made.charge(0, 0.01, (0,))
    order = []
    for _ in range(10):
        chosen = made.choose([Contender(0, 1.0, 0.0), Contender(1, 2.0, 0.0)])
        made.charge(chosen, 0.01, (0, 1))
        order.append(chosen)
    assert order.count(0) == 5


def test_measured_time_replaces_the_predicted_one():
    made = turns([0.5, 0.5])
    made.choose([Contender(0, 1.0, 0.0), Contender(1, 2.0, 0.0)])
    made.charge(0, 0.001, (0, 1))
    made.correct(0, 0.009)
    for _ in range(9):
        chosen = made.choose([Contender(0, 1.0, 0.0), Contender(1, 2.0, 0.0)])
        assert chosen == 1
        made.charge(1, 0.001, (0, 1))
