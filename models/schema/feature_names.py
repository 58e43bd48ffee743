"""Checks feature names, and suggests names for columns that cannot be used as they are."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence

from polyrec.models.schema.schema import LONGEST_NAME, NAME, RESERVED

_OTHER = re.compile(r"[^A-Za-z0-9]+")


def is_name(text: str) -> bool:
    """Returns whether a schema may use this name for a feature or a table."""
    return len(text) <= LONGEST_NAME and re.fullmatch(NAME, text) is not None


def is_usable(name: str) -> bool:
    """Returns whether a feature may have this name: valid, and not reserved by the inference protocol."""
    return is_name(name) and name not in RESERVED


def new_names(columns: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Suggests a usable name for each column, such as `article_no` for `article no`.

    Suggestions do not repeat, and are not among the `known` names.
    """
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
