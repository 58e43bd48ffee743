"""FAE's schedule: turns of cold and hot batches."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from polyrec.models.training.workers.phases import MIN_STEPS, PATIENCE, ROUND_STEPS, Phases


def batches(count: int, first: int = 0) -> list[np.ndarray]:
    return [np.array([first + i]) for i in range(count)]


def kinds(phases: Phases, cold: int, hot: int) -> list[bool]:
    return [is_hot for is_hot, _ in phases.interleave(batches(cold), batches(hot))]


def longest_turns(found: list[bool]) -> dict[bool, int]:
    turns = [(kind, len(list(run))) for kind, run in groupby(found)]
    return {kind: max(length for k, length in turns if k == kind) for kind, _ in turns}


@pytest.mark.parametrize(
    ("cold", "hot"), [(610, 972), (972, 610), (1, 900), (900, 1), (8, 5), (0, 7), (7, 0)]
)
def test_every_batch_is_taken_once_in_the_order_of_its_kind(cold: int, hot: int) -> None:
    found = [(k, int(b[0])) for k, b in Phases().interleave(batches(cold), batches(hot, 10_000))]
    assert [b for k, b in found if not k] == [*range(cold)]
    assert [b for k, b in found if k] == [10_000 + i for i in range(hot)]


@pytest.mark.parametrize(("cold", "hot"), [(610, 972), (300, 30), (45, 1500)])
def test_both_kinds_are_spread_evenly_over_a_window(cold: int, hot: int) -> None:
    found = np.array(kinds(Phases(), cold, hot))
    ahead = np.cumsum(~found) / cold - np.cumsum(found) / hot
    # of one round
    assert np.abs(ahead).max() <= ROUND_STEPS / (cold + hot) + 1 / min(cold, hot)


def test_a_falling_validation_loss_does_not_lengthen_turns() -> None:
    phases = Phases()
    before = longest_turns(kinds(phases, 610, 972))
    for check in range(5 * PATIENCE):
        phases.checked(1.0 - 0.01 * check)
    assert longest_turns(kinds(phases, 610, 972)) == before
    assert sum(before.values()) <= ROUND_STEPS + 2


def test_a_rising_validation_loss_shortens_turns_until_it_falls_again() -> None:
    phases = Phases()
    before = kinds(phases, 512, 512)
    assert longest_turns(before) == dict.fromkeys((False, True), ROUND_STEPS // 2)
    for check in range(10):
        phases.checked(1.0 + check)
    assert longest_turns(kinds(phases, 512, 512)) == dict.fromkeys((False, True), MIN_STEPS // 2)
    for check in range(10 * PATIENCE):
        phases.checked(-1.0 - check)
    assert kinds(phases, 512, 512) == before


def test_the_loss_of_a_check_within_a_window_counts_for_its_next_round() -> None:
    phases = Phases()
    taken = phases.interleave(batches(512), batches(512))
    first = [next(taken)[0] for _ in range(ROUND_STEPS)]
    phases.checked(1.0)
    phases.checked(2.0)
    rest = [is_hot for is_hot, _ in taken]
    assert longest_turns(rest)[True] == longest_turns(first)[True] // 2
