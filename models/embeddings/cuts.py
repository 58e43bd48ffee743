"""Which rows to store: cuts, one a table, in the popularity order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.vocabulary import Vocabulary


def stored_but_largest(vocabularies: Mapping[str, Vocabulary], computed: int) -> dict[str, int]:
    """MP-Rec's select: everything stored but the `computed` largest tables."""
    by_size = sorted(vocabularies, key=lambda t: (-vocabularies[t].rows, t))
    return {t: v.rows for t, v in vocabularies.items() if t not in by_size[:computed]}


def stored_within(vocabularies: Mapping[str, Vocabulary], rows: int) -> dict[str, int]:
    """The `rows` most accessed rows of all tables: one threshold on accesses fills the budget.

    All rows are equally long, so accesses per row is accesses per byte, and taking the densest first
    solves the knapsack exactly. Equally accessed rows are taken table by table.
    """
    counts = np.concatenate([v.counts for v in vocabularies.values()])
    sizes = [v.rows for v in vocabularies.values()]
    table = np.repeat(np.arange(len(sizes)), sizes)
    chosen = np.argsort(-counts, kind="stable")[: max(rows, 0)]
    taken = np.bincount(table[chosen], minlength=len(sizes))
    return {t: int(n) for t, n in zip(vocabularies, taken, strict=True) if n}
