"""Defines the callbacks by which passes over rows report their progress."""

from __future__ import annotations

from collections.abc import Callable

RowsDone = Callable[[int], object]
"""Called with the number of rows done since the last call."""
Phase = Callable[[str, int | None], RowsDone]
"""Starts a phase of some rows (None: unknown), by name; returns the callback for rows done."""


def ignore_rows(_done: int) -> None:
    """Reports nothing."""


def ignore_phase(_name: str, _rows: int | None) -> RowsDone:
    """Starts a phase that reports nothing."""
    return ignore_rows
