"""Recognizes plain requests that repeat a context in consecutive rows, and makes rankings of them.

Most servers have no form for one context with its candidates, so clients explode it: every row repeats the
user's features. Such a request is answered as the ranking that it is (docs/context-once.md). The decision
depends on nothing but the request's own values, so equal requests are executed in the same form whatever is
merged with them; what is compared are bits, so a context is never replaced by one that merely equals it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64, take_bags
from polyrec.models.schema.id_columns import column_order
from polyrec.models.schema.schema import ROLES, Role, Schema
from polyrec.server.codecs.rows import RankedTensors, RoleTensors, Tensors

FROM_ROWS = 8
"""Minimum rows for each context: with fewer, a ranking's further operations take longer than they save."""


class RepeatedContexts:
    """Recognizes the requests of one schema, whose lengths were checked to add up to their values."""

    def __init__(self, schema: Schema) -> None:
        dense, singles = schema.tensor_columns()
        layouts = {role: schema.layout(role) for role in ROLES}
        names = {role: schema.tensor_columns(role) for role in ROLES}
        self._dense = {role: column_order(dense, of_role[0]) for role, of_role in names.items()}
        self._sparse = {role: column_order(singles, of_role[1]) for role, of_role in names.items()}
        self._bags = {r: [f.name for f in of.bags] for r, of in layouts.items()}
        # a model without vectors of both roles executes the rows of a ranking as plain ones
        self._saves = all(of.categorical for of in layouts.values())

    def __call__(self, rows: Tensors) -> Tensors | RankedTensors:
        """Returns a ranking of the same rows, each run of equal contexts once, or the rows themselves."""
        if not self._saves or rows.rows < FROM_ROWS or self._differs_at_once(rows):
            return rows
        changed = self._changed(rows)
        if np.count_nonzero(changed) * FROM_ROWS > rows.rows:
            return rows
        first = np.flatnonzero(changed)
        context, candidate = self._of("context", rows), self._of("candidate", rows)
        bags = {name: _bags_of(first, *bag) for name, bag in context.bags.items()}
        once = RoleTensors(context.dense[first], context.sparse[first], bags)
        context_row = np.cumsum(changed) - 1
        return RankedTensors(once, candidate, context_row, rows.request, rows.request_lengths)

    def _of(self, role: Role, rows: Tensors) -> RoleTensors:
        """The features of one role, of every row."""
        bags = {name: rows.bags[name] for name in self._bags[role]}
        return RoleTensors(rows.dense[:, self._dense[role]], rows.sparse[:, self._sparse[role]], bags)

    def _differs_at_once(self, rows: Tensors) -> bool:
        """Whether the first two rows differ in ids of the context; independent rows cost only this."""
        first, second = rows.sparse[:2, self._sparse["context"]]
        return bool(first.tobytes() != second.tobytes())

    def _changed(self, rows: Tensors) -> NDArray[np.bool_]:
        """Whether the context of each row differs from that of the row before; bool [rows], first True."""
        ids = rows.sparse[:, self._sparse["context"]]
        # as integers: NaN differs from itself, and -0.0 equals 0.0
        numbers = rows.dense.view(np.int32)[:, self._dense["context"]]
        changed = np.ones(rows.rows, bool)
        np.any(ids[1:] != ids[:-1], axis=1, out=changed[1:])
        changed[1:] |= (numbers[1:] != numbers[:-1]).any(axis=1)
        for name in self._bags["context"]:
            values, lengths = rows.bags[name]
            changed[1:] |= lengths[1:] != lengths[:-1]
            # where lengths are equal, a value's counterpart in the row before is `length` places ahead of it
            row = np.repeat(np.arange(rows.rows), lengths)
            counterpart = np.arange(values.size) - lengths[row]
            changed[row[values != values[counterpart]]] = True
        return changed


def _bags_of(rows: I64, values: I64, lengths: I64) -> tuple[I64, I64]:
    """Returns values and lengths of the given rows of a multi-valued feature."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return take_bags(values, offsets, rows)[0], lengths[rows]
