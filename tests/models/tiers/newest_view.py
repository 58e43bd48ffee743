"""Enters the newest view of tiered rows, as the server does for each batch (lanes/tiered_runtime.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.view import View


@contextmanager
def newest_view(rows: TieredRows) -> Iterator[View]:
    """Yields the newest row order and its updates, to encode and gather one batch within the block."""
    view = rows.stack.views.enter()
    try:
        with rows.within(view):
            yield view
    finally:
        rows.stack.views.leave(view)
