from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyrec.loadtest.results.slo import HEAD, SloTable

ANSWER = st.tuples(
    st.sampled_from(["rank", "predict"]),
    st.integers(1, 700),
    st.floats(0, 0.02),
    st.just(0.01),
    st.sampled_from([200, 429, 504]),
    st.booleans(),
    st.just(0.0),
)


def counted(answers: list[tuple[str, int, float, float, int, bool, float]]) -> SloTable:
    table = SloTable()
    for answer in answers:
        table.count(*answer)
    return table


@given(st.lists(st.lists(ANSWER, max_size=20), min_size=1, max_size=4))
def test_workers_counts_add_up_to_those_of_one(workers: list[list[tuple]]) -> None:
    master = SloTable()
    for answers in workers:
        worker = counted(answers)
        master.merge(worker.pop())
        assert worker.total().requests == 0
    assert master.kinds == counted([a for answers in workers for a in answers]).kinds


def test_only_answers_within_the_budget_are_goodput() -> None:
    counts = counted(
        [
            ("rank", 10, 0.005, 0.01, 200, True, 0.0),
            ("rank", 20, 0.02, 0.01, 200, False, 0.0),
            ("rank", 40, 0.001, 0.01, 429, False, 0.002),
            ("predict", 5, 0.001, 0.01, 200, False, 0.0),
        ]
    )
    table = counts.table(seconds=2.0)
    assert table[0] == HEAD
    assert table[1] == ("predict", "1", "100.00%", "0.00%", "0.00%", "2", "0.00")
    assert table[2] == ("rank", "3", "33.33%", "33.33%", "33.33%", "5", "0.67")
    assert table[3][:3] == ("Aggregated", "4", "50.00%")
