"""Reading rounds: their expected end, and which queries a rejection covers."""

from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.routing.admission.reading_round import ReadingRound, SmallestRejected
from polyrec.planner.routing.query import Rejection, RejectReason

WAITED_S = st.lists(st.floats(0, 0.02), min_size=1, max_size=8)


@given(rounds=st.lists(WAITED_S, min_size=1, max_size=4), busy=st.floats(0, 0.8), step_s=st.floats(0, 0.004))
def test_a_round_takes_as_long_as_reading_what_came_since_the_earliest_of_its_queries(rounds, busy, step_s):
    reading = ReadingRound()
    now_s = 1.0
    for waited in rounds:
        begun_s, arrivals = now_s, []
        for waited_s in waited:
            arrivals.append(begun_s - waited_s)
            foreseen_s = max(begun_s + (begun_s - arrival_s) * busy for arrival_s in arrivals)
            assert reading.expected_end_s(arrivals[-1], now_s, busy) == max(foreseen_s, now_s)
            now_s += step_s
        reading.end()


@given(
    rejection=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=6),
    size=st.integers(1, 5),
    deadline_s=st.integers(1, 5),
)
def test_the_smallest_rejected_query_covers_larger_ones_with_no_more_time(rejection, size, deadline_s):
    reading = ReadingRound()
    reading.expected_end_s(0.0, 0.0, 0.0)
    for i, (own, service_time_s) in enumerate(rejection):
        reading.record_rejection("rank", Rejection(RejectReason.OVERLOAD, 0.1, i), own, service_time_s, own)
    at = min(range(len(rejection)), key=lambda i: rejection[i][0], default=-1)
    stands = at >= 0 and size >= rejection[at][0] and deadline_s <= rejection[at][1]
    smallest = reading.rejected.get("rank", SmallestRejected())
    assert smallest.covers(size, deadline_s) == stands
    if stands:
        assert smallest.rejection is not None
        assert (smallest.rejection.queued_rows, smallest.rows) == (at, rejection[at][0])
    reading.end()
    assert not reading.rejected
