"""Parses the flag --quality of verbs that accept given qualities: NAME=VALUE, repeatable."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyrec.models.errors import PolyrecError


def parse_quality(
    texts: Sequence[str], form: str, error: type[PolyrecError], known: Sequence[str] | None = None
) -> dict[str, float]:
    """Parses values by name.

    form: the expected syntax, for messages. known: the allowed names; None: any. Raises `error`.
    """
    given = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or (known is not None and name not in known):
            remedy = "" if known is None else f" with one of {', '.join(known)}"
            raise error(f"--quality '{text}': write {form}{remedy}")
        try:
            given[name] = float(value)
        except ValueError:
            given[name] = math.nan
        if not math.isfinite(given[name]):
            raise error(f"--quality '{text}': '{value}' is not a number")
    return given
