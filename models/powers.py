"""Rounds sizes to powers of two.

A buffer that grows to the next power of two is only reallocated a few times: a server stops allocating after
its largest batches.
"""

from __future__ import annotations


def next_power_of_two(n: int) -> int:
    """Returns the smallest power of two that is at least n: 1 for 0, 8 for 5, 8 for 8."""
    return 1 << max(n - 1, 0).bit_length()
