"""Chooses cuts: how many of the hottest rows of each table to store."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyrec.models.schema.vocabulary import Vocabulary


def stored_but_largest(vocabularies: Mapping[str, Vocabulary], computed: int) -> dict[str, int]:
    """Returns cuts that store all tables except the `computed` largest, as in MP-Rec's select."""
    by_size = sorted(vocabularies, key=lambda t: (-vocabularies[t].rows, t))
    return {t: v.rows for t, v in vocabularies.items() if t not in by_size[:computed]}


def stored_within(vocabularies: Mapping[str, Vocabulary], rows: int) -> dict[str, int]:
    """Returns cuts that store the `rows` most accessed rows over all tables.

    All rows have equal length, so taking the hottest first solves the knapsack exactly. Ties go to the
    earlier table.
    """
    counts = np.concatenate([v.counts for v in vocabularies.values()])
    sizes = [v.rows for v in vocabularies.values()]
    table = np.repeat(np.arange(len(sizes)), sizes)
    chosen = np.argsort(-counts, kind="stable")[: max(rows, 0)]
    taken = np.bincount(table[chosen], minlength=len(sizes))
    return {t: int(n) for t, n in zip(vocabularies, taken, strict=True) if n}


def tiers_within(
    vocabularies: Mapping[str, Vocabulary], row_bytes: int, budgets: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Assigns rows to tiers: table -> tier -> number of rows, hottest first.

    budgets: tier -> bytes, fastest first; the last tier takes all remaining rows. One threshold on accesses
    per byte over all tables fills each tier, which maximizes the accesses to the first tier, then to the
    first two together, and so on.
    """
    cuts: dict[str, dict[str, int]] = {t: {} for t in vocabularies}
    held = dict.fromkeys(vocabularies, 0)
    rows_held = 0
    for place, (tier, budget) in enumerate(budgets.items()):
        rows_held += max(budget, 0) // row_bytes
        last = place == len(budgets) - 1
        upto = (
            {t: v.rows for t, v in vocabularies.items()} if last else stored_within(vocabularies, rows_held)
        )
        for table in vocabularies:
            cuts[table][tier] = upto.get(table, 0) - held[table]
            held[table] = upto.get(table, 0)
    return cuts
