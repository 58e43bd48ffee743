"""Sizes rounded to powers of two."""

from __future__ import annotations

from itertools import count

from polyrec.models.powers import next_power_of_two


def test_next_power_of_two_is_the_first_that_is_large_enough() -> None:
    for n in range(1025):
        assert next_power_of_two(n) == next(1 << i for i in count() if 1 << i >= n)
