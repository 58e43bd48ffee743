"""Reading rounds: their expected end."""

from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.routing.admission.reading_round import ReadingRound

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
