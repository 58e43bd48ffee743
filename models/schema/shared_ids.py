"""Checks that bundles can be paths of one plan: equal schemas, and vocabularies with the same ids and values.

`polyrec profile`, `polyrec plan` and the server apply it. Clients may send stable ids, which must mean the
same on every path; the popularity order may differ.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyrec.models.schema.encoder import Encoder

REMEDY = (
    "train both from one calibration: `polyrec calibrate DATA --schema SCHEMA --out FILE`, then "
    "`polyrec train --calibration FILE`"
)


def obstacle(encoders: Mapping[str, Encoder]) -> str | None:
    """Names two bundles that one plan cannot serve, with the reason; None if it can serve all.

    encoders: by the name to use for the bundle, at least one.
    """
    (first, one), *others = encoders.items()
    for name, other in others:
        if other.schema != one.schema:
            return f"'{first}' and '{name}' have different schemas; a plan serves one"
        if not same_ids(one, other):
            return f"'{first}' and '{name}' have different vocabularies; {REMEDY}"
    return None


def same_ids(one: Encoder, other: Encoder) -> bool:
    """Whether both encoders map the same stable ids to the same values."""
    if one is other:
        return True
    for table, vocabulary in one.vocabularies.items():
        theirs = other.vocabularies.get(table)
        if theirs is None or theirs.size != vocabulary.size:
            return False
        if (theirs.values is None) != (vocabulary.values is None):
            return False
        if vocabulary.values is not None and not vocabulary.values.equals(theirs.values):
            return False
    return True
