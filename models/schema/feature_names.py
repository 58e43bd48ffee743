"""Names of features: which a column may have, and what to rename other columns to."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence

from polyrec.models.schema.schema import LONGEST_NAME, NAME, RESERVED

_OTHER = re.compile(r"[^A-Za-z0-9]+")


def is_name(text: str) -> bool:
    """Whether a schema may name a feature or a table so."""
    return len(text) <= LONGEST_NAME and re.fullmatch(NAME, text) is not None


def is_usable(name: str) -> bool:
    """Whether a feature may have this name: one that the inference protocol does not reserve."""
    return is_name(name) and name not in RESERVED


def new_names(columns: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Returns a usable name for each of the columns, like `article_no` for `article no`; none is known."""
    taken, found = set(known), dict[str, str]()
    for column in columns:
        plain = unicodedata.normalize("NFKD", column).encode("ascii", "ignore").decode()
        stem = _OTHER.sub("_", plain).strip("_").lower()[: LONGEST_NAME - 10] or "column"
        stem = f"column_{stem}" if stem[0].isdigit() or stem in RESERVED else stem
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        taken.add(name)
        found[column] = name
    return found
