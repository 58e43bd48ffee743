from __future__ import annotations

import math

import pytest

from polyrec.models.tiers.device.transfer_costs import COPIED, DIRECT, EVERY, TransferCosts


def serve(
    transfer_costs: TransferCosts, batches: int, lookups: int, misses: int, costs: tuple[float, float]
) -> list[int]:
    taken = []
    for _ in range(batches):
        mode = transfer_costs.choose(lookups, misses)
        transfer_costs.record(mode, lookups, misses, costs[mode])
        taken.append(mode)
    return taken


@pytest.mark.parametrize("cheaper", [DIRECT, COPIED])
def test_the_faster_mode_is_chosen_except_for_retries(cheaper: int) -> None:
    costs = (1e-4, 2e-4) if cheaper == DIRECT else (2e-4, 1e-4)
    taken = serve(TransferCosts(), 10 * EVERY, 26 * 64, 80, costs)
    assert set(taken[:2]) == {DIRECT, COPIED}
    assert taken.count(1 - cheaper) == 1 + 10
    assert taken[-1] == 1 - cheaper  # and it is retried indefinitely


def test_each_miss_rate_and_size_is_chosen_separately() -> None:
    transfer_costs = TransferCosts()
    serve(transfer_costs, 10, 26 * 64, 10, (1e-4, 2e-4))
    serve(transfer_costs, 10, 26 * 64, 1000, (5e-4, 2e-4))
    assert transfer_costs.choose(26 * 64, 10) == DIRECT
    assert transfer_costs.choose(26 * 64, 1000) == COPIED
    assert transfer_costs.cost(DIRECT, 26 * 64, 10) == pytest.approx(1e-4)
    assert math.isnan(transfer_costs.cost(DIRECT, 26, 10))


def test_a_machine_that_changes_is_noticed() -> None:
    transfer_costs = TransferCosts()
    serve(transfer_costs, 10, 1000, 100, (1e-4, 2e-4))
    taken = serve(transfer_costs, 100 * EVERY, 1000, 100, (4e-4, 2e-4))
    assert taken[-10:].count(COPIED) >= 9


def test_both_modes_are_tried_before_any_is_timed() -> None:
    transfer_costs = TransferCosts()
    assert {transfer_costs.choose(100, 5) for _ in range(4)} == {DIRECT, COPIED}
