"""Converts plain requests that repeat a context in consecutive rows to rankings.

Most servers have no form for one context with several candidates, so clients repeat the user's features in
every row. Such a request is executed as a ranking, which computes each context once (docs/context-once.md).

The decision depends only on the request's own values, so equal requests execute in the same form whatever
they are batched with. Contexts are compared bit by bit, so -0.0 never replaces 0.0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64, take_bags
from polyrec.models.schema.id_columns import column_order
from polyrec.models.schema.schema import ROLES, Role, Schema
from polyrec.server.codecs.rows import RankedTensors, RoleTensors, Tensors

FROM_ROWS = 8
"""Minimum rows per context; with fewer, the extra operations of a ranking cost more than they save."""


class RepeatedContexts:
    """Converts requests of one schema. Their lengths must have been validated."""

    def __init__(self, schema: Schema) -> None:
        dense, singles = schema.tensor_columns()
        layouts = {role: schema.layout(role) for role in ROLES}
        names = {role: schema.tensor_columns(role) for role in ROLES}
        self._dense = {role: column_order(dense, of_role[0]) for role, of_role in names.items()}
        self._sparse = {role: column_order(singles, of_role[1]) for role, of_role in names.items()}
        self._bags = {r: [f.name for f in of.bags] for r, of in layouts.items()}
        # a model without categorical features in both roles executes rankings as plain rows
        self._saves = all(of.categorical for of in layouts.values())

    def __call__(self, rows: Tensors) -> Tensors | RankedTensors:
        """Returns a ranking that has each run of equal contexts once, or `rows` if that does not pay."""
        if not self._saves or rows.rows < FROM_ROWS or self._first_rows_differ(rows):
            return rows
        changed = self._changed(rows)
        if np.count_nonzero(changed) * FROM_ROWS > rows.rows:
            return rows
        first = np.flatnonzero(changed)
        context, candidate = self._of("context", rows), self._of("candidate", rows)
        bags = {name: _bags_of(first, *bag) for name, bag in context.bags.items()}
        once = RoleTensors(context.dense[first], context.sparse[first], bags)
        context_row = np.cumsum(changed) - 1
        return RankedTensors(once, candidate, context_row, rows.request_features, rows.request_lengths)

    def _of(self, role: Role, rows: Tensors) -> RoleTensors:
        """Returns the features of one role for every row."""
        bags = {name: rows.bags[name] for name in self._bags[role]}
        return RoleTensors(rows.dense[:, self._dense[role]], rows.sparse[:, self._sparse[role]], bags)

    def _first_rows_differ(self, rows: Tensors) -> bool:
        """Whether the first two rows differ in context ids; a cheap test that catches independent rows."""
        first, second = rows.sparse[:2, self._sparse["context"]]
        return bool(first.tobytes() != second.tobytes())

    def _changed(self, rows: Tensors) -> NDArray[np.bool_]:
        """Returns whether each row's context differs from the previous row's: bool [rows], first True."""
        ids = rows.sparse[:, self._sparse["context"]]
        # compare bits: as floats, NaN differs from itself and -0.0 equals 0.0
        numbers = rows.dense.view(np.int32)[:, self._dense["context"]]
        changed = np.ones(rows.rows, bool)
        np.any(ids[1:] != ids[:-1], axis=1, out=changed[1:])
        changed[1:] |= (numbers[1:] != numbers[:-1]).any(axis=1)
        for name in self._bags["context"]:
            values, lengths = rows.bags[name]
            changed[1:] |= lengths[1:] != lengths[:-1]
            # if two rows have equal lengths, a value's counterpart is `length` places before it
            row = np.repeat(np.arange(rows.rows), lengths)
            counterpart = np.arange(values.size) - lengths[row]
            changed[row[values != values[counterpart]]] = True
        return changed


def _bags_of(rows: I64, values: I64, lengths: I64) -> tuple[I64, I64]:
    """Returns values and lengths of the given rows of a multi-valued feature."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return take_bags(values, offsets, rows)[0], lengths[rows]
