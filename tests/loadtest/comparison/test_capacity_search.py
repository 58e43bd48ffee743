from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyrec.loadtest.comparison.capacity_search import LOWEST_RATE, CapacitySearch


def run_search(search: CapacitySearch, meets_slo: object) -> CapacitySearch:
    while (rate := search.rate) is not None:
        search.record(rate, meets_slo(rate))
    return search


@given(st.floats(0.01, 10) | st.floats(2, 90_000), st.floats(1, 50_000), st.floats(1.02, 1.5))
def test_capacity_is_found_to_the_given_precision(capacity: float, first: float, precision: float) -> None:
    search = run_search(
        CapacitySearch(first, precision=precision, max_verdicts=200), lambda rate: rate <= capacity
    )
    if search.met is not None and search.missed is not None:
        assert search.met <= capacity < search.missed <= search.met * precision
    elif search.missed is None:
        # it ends where the next rate would be too high to try
        assert search.met * search.growth > search.highest
    else:
        assert search.missed / search.growth < LOWEST_RATE


def test_one_bad_run_is_repeated() -> None:
    noise = iter([True, False, True, *[True] * 100])
    search = run_search(CapacitySearch(100, highest=1000), lambda rate: next(noise))
    assert [rate for rate, _ in search.verdicts] == [100, 200, 200, 400, 800]
    assert search.met == 800


def test_a_lucky_run_is_not_taken_for_the_capacity() -> None:
    """The first run at each rate beyond 150 meets the SLO; later ones do not."""
    seen: set[float] = set()

    def lucky(rate: float) -> bool:
        first = rate not in seen
        seen.add(rate)
        return rate < 150 or (first and rate < 190)

    search = run_search(CapacitySearch(100), lucky)
    assert 150 / search.precision <= search.met < 150
    assert search.verdicts.count((search.met, True)) == 2


def test_a_rate_is_given_up_after_its_tries_and_approached_from_below() -> None:
    search = run_search(CapacitySearch(100, tries=3, precision=1.2), lambda rate: rate < 150)
    rates = [rate for rate, _ in search.verdicts]
    assert rates[:4] == [100, 200, 200, 200]
    assert rates[4] == (100 * 200) ** 0.5
    assert search.verdicts.count((search.met, True)) == 3


def test_a_search_ends_within_its_verdicts() -> None:
    search = run_search(CapacitySearch(100, precision=1.0001, max_verdicts=9), lambda rate: rate < 150)
    assert len(search.verdicts) == 9
