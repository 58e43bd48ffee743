from __future__ import annotations

import numpy as np

from polyrec.models.tiers.prefix.balance import BLOCK, WINDOW, Balance


def noted(balance: Balance, lookups: int, share: float, colder: float, returned: float) -> int:
    """Notes lookups in batches of 256 until something is due; shares are of the lookups."""
    for _ in range(0, lookups, 256):
        balance.count_batch(256, int(256 * share), int(256 * colder), int(256 * returned))
        if due := balance.due(1000, 2000):
            return due
    return 0


def test_nothing_is_released_while_the_colder_half_has_more_hits_a_slot() -> None:
    # 0.1 of the lookups by 500 slots, against 0.2 of them by 2000
    assert noted(Balance(), 20 * WINDOW, 0.6, 0.1, 0.2) == 0


def test_the_colder_half_is_released_where_the_cache_would_have_more_hits_a_slot() -> None:
    assert noted(Balance(), WINDOW, 0.6, 0.04, 0.2) == 500
    assert noted(Balance(), WINDOW - 512, 0.6, 0.04, 0.2) == 0


def test_few_returning_rows_prove_nothing() -> None:
    balance = Balance()
    balance.count_batch(WINDOW, 0, 0, 3)
    assert balance.due(1000, 2000) == 0


def test_a_sudden_fall_releases_all() -> None:
    balance = Balance()
    assert noted(balance, 10 * WINDOW, 0.5, 0.2, 0.1) == 0
    assert noted(balance, 4 * BLOCK, 0.2, 0.1, 0.1) == 1000


def test_noise_is_no_fall() -> None:
    random = np.random.default_rng(0)
    balance = Balance()
    for _ in range(2000):
        hits = int(random.binomial(256, 0.05))
        balance.count_batch(256, hits, hits, 0)
        assert balance.due(1000, 2000) == 0


def test_without_a_prefix_nothing_is_due() -> None:
    balance = Balance()
    balance.count_batch(10**6, 0, 0, 10**5)
    assert balance.due(0, 1000) == 0
