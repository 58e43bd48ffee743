from __future__ import annotations

import math

import pytest

from polyrec.models.tiers.device.ways import COPIED, DIRECT, EVERY, Ways


def serve(ways: Ways, batches: int, lookups: int, misses: int, costs: tuple[float, float]) -> list[int]:
    taken = []
    for _ in range(batches):
        way = ways.choose(lookups, misses)
        ways.took(way, lookups, misses, costs[way])
        taken.append(way)
    return taken


@pytest.mark.parametrize("cheaper", [DIRECT, COPIED])
def test_the_way_that_took_less_is_taken_but_for_now_and_then(cheaper: int) -> None:
    costs = (1e-4, 2e-4) if cheaper == DIRECT else (2e-4, 1e-4)
    taken = serve(Ways(), 10 * EVERY, 26 * 64, 80, costs)
    assert set(taken[:2]) == {DIRECT, COPIED}
    assert taken.count(1 - cheaper) == 1 + 10
    assert taken[-1] == 1 - cheaper  # and it is tried again for ever


def test_each_miss_rate_and_size_has_a_choice_of_its_own() -> None:
    ways = Ways()
    serve(ways, 10, 26 * 64, 10, (1e-4, 2e-4))
    serve(ways, 10, 26 * 64, 1000, (5e-4, 2e-4))
    assert ways.choose(26 * 64, 10) == DIRECT
    assert ways.choose(26 * 64, 1000) == COPIED
    assert ways.cost(DIRECT, 26 * 64, 10) == pytest.approx(1e-4)
    assert math.isnan(ways.cost(DIRECT, 26, 10))


def test_a_machine_that_changes_is_noticed() -> None:
    ways = Ways()
    serve(ways, 10, 1000, 100, (1e-4, 2e-4))
    taken = serve(ways, 100 * EVERY, 1000, 100, (4e-4, 2e-4))
    assert taken[-10:].count(COPIED) >= 9


def test_both_ways_are_tried_while_nothing_has_been_timed() -> None:
    ways = Ways()
    assert {ways.choose(100, 5) for _ in range(4)} == {DIRECT, COPIED}
