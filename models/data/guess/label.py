"""Guesses the label of a data set: the column, and above which value a row is positive.

A label in words cannot be used; the error has a command that makes a number of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polyrec.models.data.columns import floats
from polyrec.models.data.guess.column import is_number, is_text
from polyrec.models.data.guess.read_code import code_to_read
from polyrec.models.data.remote.path import DataPath, RemotePath
from polyrec.models.errors import SchemaError
from polyrec.models.text import python_command, python_literal

LABELS = ("clicked", "click", "label", "is_click", "target", "purchased", "converted", "conversion", "rating")
"""Usual names of labels, the surest first."""
POSITIVE_TEXTS = ("1", "yes", "y", "true", "t", "click", "clicked", "positive", "pos")
"""Words, in lower case, with which a label in words is positive."""


def guess_label(data: pa.Table, given: str | None, path: DataPath) -> tuple[dict[str, Any], str]:
    """Returns the label and the reason. Raises SchemaError if no column looks like one."""
    numbers = [c for c in data.column_names if is_number(data[c].type)]
    named = [c for c in LABELS if c in numbers]
    binary = [c for c in numbers if _distinct_numbers(data[c]).tolist() == [0, 1]]
    if given is None:
        sure = [c for c in named if c in binary]
        usual = sure or named or (binary if len(binary) == 1 else [])
        texts = [c for c in LABELS if c in data.column_names and is_text(data[c].type)]
        if named:  # a rating beside a click in words, not beside the name of a record label
            texts = [c for c in texts if pc.count_distinct(data[c]).as_py() == 2]
        if not sure and texts:
            raise _text_label(texts[0], data[texts[0]], path, named or binary)
        if not usual:
            seen = f"; 0 and 1 only: {', '.join(binary)}" if binary else ""
            raise SchemaError(f"no column of '{path}' looks like a label{seen}; name it: --label COLUMN")
        given = usual[0]
    elif is_text(data[given].type):
        raise _text_label(given, data[given], path)
    elif given not in numbers:
        raise SchemaError(f"column '{given}' of '{path}' is {data[given].type}; a label is a number")
    values = _distinct_numbers(data[given])
    positives = _share(data[given], 0.0)
    if values.size <= 2 or given in binary:
        return {"column": given}, f"0 or 1; {positives:.1%} positive"
    above = float(np.nanmedian(floats(data[given])))
    above = float(values[values < above][-1]) if (values < above).any() else above
    kept = _share(data[given], above)
    return (
        {"column": given, "positive_above": above},
        f"{values.size} values from {values[0]:g} to {values[-1]:g}: positive above {above:g}, "
        f"{kept:.1%} of the rows; choose what counts as a success",
    )


def _text_label(
    name: str, column: pa.ChunkedArray, path: DataPath, others: Sequence[str] = ()
) -> SchemaError:
    """Returns the error for a textual label, with a command that converts two values to numbers.

    others: columns that may be the label instead.
    """
    values = sorted(set(pc.unique(column).to_pylist()) - {None})
    shown = ", ".join(repr(value[:30]) for value in values[:3]) + (", ..." if len(values) > 3 else "")
    said = f"column '{name}' of '{path}' is text ({shown}); a label is a number"
    if others:
        said += f" (if another column is the label: --label {'|'.join(others)})"
    if len(values) != 2 or isinstance(path, RemotePath):
        return SchemaError(f"{said}, or true and false: write it so, say 1 for a click and 0 for none")
    counts = {value: pc.sum(pc.equal(column, value)).as_py() for value in values}
    usual = [value for value in values if value.lower() in POSITIVE_TEXTS]
    positive = usual[0] if len(usual) == 1 else min(values, key=lambda value: counts[value])
    name, positive = (python_literal(text) for text in (name, positive))
    code = f"{code_to_read(path)}; import pyarrow.compute as c; i = t.column_names.index({name}); "
    code += f'label = c.equal(t[i].cast("string"), {positive}); '
    code += f'p.write_table(t.set_column(i, {name}, label), "labeled.parquet")'
    return SchemaError(f"{said}; make one of it in a copy: {python_command(code)}")


def _distinct_numbers(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Returns the distinct values, ascending, float64."""
    values = floats(pc.unique(column))
    return np.sort(values[np.isfinite(values)])


def _share(column: pa.ChunkedArray, above: float) -> float:
    """Returns the share of rows above a value."""
    values = floats(column)
    known = values[~np.isnan(values)]
    return float((known > above).mean()) if known.size else 0.0
