"""Finds malformed rows of a columnar file (missing label, infinite number), to raise or to skip and count
them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from polyrec.models.data.reader import OnMalformed
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema

INFINITE = (float("inf"), float("-inf"))


class RowValidator:
    """Checks every row by the same columns in every pass, so that each pass leaves out the same rows.

    malformed: rows left out since `start_pass`.
    """

    def __init__(self, schema: Schema, on_malformed: OnMalformed) -> None:
        self.columns = tuple(dict.fromkeys([schema.label.column, *(d.name for d in schema.dense)]))
        self.malformed = 0
        self._label = schema.label.column
        self._fatal = on_malformed == "fatal"

    def start_pass(self) -> None:
        """Resets the count before a new pass."""
        self.malformed = 0

    def valid_rows(self, where: str, first: int, data: pa.RecordBatch) -> pa.BooleanArray | None:
        """Returns a mask of the valid rows; None if all are valid.

        data: at least `columns`, normalized. first: number of its first row, for the message.
        Raises DataError naming the first malformed row, if malformed rows are fatal.
        """
        valid_rows = pc.is_valid(data.column(self._label))
        for name in self.columns:
            valid_rows = pc.and_(valid_rows, pc.fill_null(pc.is_finite(data.column(name)), True))
        bad = data.num_rows - (pc.sum(valid_rows).as_py() or 0)
        if not bad:
            return None
        if self._fatal:
            row = pc.index(valid_rows, False).as_py()
            values = {name: data.column(name)[row].as_py() for name in self.columns}
            missing = values[self._label] is None
            name = self._label if missing else next(n for n, v in values.items() if v in INFINITE)
            raise DataError(
                f"{where}: row {first + row}: '{name}' is {values[name]}; "
                "correct the row, or skip and count such rows (train and evaluate: --on-malformed count)"
            )
        self.malformed += bad
        return valid_rows
