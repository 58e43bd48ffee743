"""Names of features: which a column may have, and what to rename other columns to."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence

from polyrec.models.schema.schema import RESERVED

LONGEST = 64
_USABLE = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{LONGEST - 1}}}")
_OTHER = re.compile(r"[^A-Za-z0-9]+")


def is_usable(name: str) -> bool:
    """Whether a feature may have this name: an identifier that the inference protocol does not reserve."""
    return _USABLE.fullmatch(name) is not None and name not in RESERVED


def new_names(columns: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Returns a usable name for each of the columns, like `article_no` for `article no`; none is known."""
    taken, found = set(known), dict[str, str]()
    for column in columns:
        plain = unicodedata.normalize("NFKD", column).encode("ascii", "ignore").decode()
        stem = _OTHER.sub("_", plain).strip("_").lower()[: LONGEST - 10] or "column"
        stem = f"column_{stem}" if stem[0].isdigit() or stem in RESERVED else stem
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        taken.add(name)
        found[column] = name
    return found
