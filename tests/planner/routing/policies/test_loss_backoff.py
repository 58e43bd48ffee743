"""Caution: losses make careful at once, time makes bold again."""

from polyrec.planner.routing.policies.loss_backoff import SPARE, Caution
from tests.planner.routing.worlds import CPU, Owner, cpu_lanes, router


def test_one_tick_counts_once_however_many_are_lost():
    one, many = Caution(), Caution()
    one.lost()
    for _ in range(50):
        many.lost()
    assert one.spare == many.spare < SPARE


def test_after_losses_in_tick_after_tick_nothing_is_spared_for_accuracy():
    caution = Caution()
    for _ in range(10):
        caution.lost()
        caution.tick()
    assert caution.spare == 0


def test_it_passes_within_seconds():
    caution = Caution()
    caution.lost()
    caution.tick()
    levels = []
    for _ in range(50):
        caution.tick()
        levels.append(caution.level)
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] < 0.1 * levels[0]


def chosen(careful: bool) -> str:
    owner = Owner(router(CPU, cpu_lanes(1)))
    if careful:
        for _ in range(4):
            owner.router.board.caution.lost()
            owner.router.board.caution.tick()
    query = owner.offer(20, 0.1)
    owner.offer(20, 0.1)
    dispatch = owner.router.next(0, 0.0)
    assert dispatch is not None
    assert query.path == dispatch.path
    return owner.router.paths[dispatch.path].name


def test_who_is_careful_takes_the_fastest_path():
    assert chosen(careful=False) == "hybrid@cpu"
    assert chosen(careful=True) == "table@cpu"
