"""Makes lookups to compare caching policies: generated traces with new rows, and Book-Crossing's.

Each begins with the part that a calibration sees. Rows are numbered over all tables, in no particular order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyarrow import parquet

from benchmarks.zipf import zipf_cdf
from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import load_schema

ROWS = 150_000
LOOKUPS = 800_000
LATE = 1 / 3
"""Share of the lookups after calibration that are of rows not seen in it."""
CALIBRATED = 0.2


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace. rows: of all tables. calibrated, lookups: int64, lookups that calibration counts; others."""

    name: str
    rows: int
    calibrated: I64
    lookups: I64

    @property
    def counts(self) -> I64:
        """Calibration's access counts, int64 [rows]."""
        return np.bincount(self.calibrated, minlength=self.rows)


def generated(exponent: float, permuted: bool, lookups: int = LOOKUPS) -> Trace:
    """Returns Zipf-distributed lookups of two thirds of the rows, and after calibration also of the others.

    permuted: whether all rows are permuted in the middle of the lookups after calibration.
    """
    random = np.random.default_rng(0)
    old = ROWS * 2 // 3
    early = int(lookups * CALIBRATED)
    rows = np.searchsorted(zipf_cdf(old, exponent), random.random(lookups))
    late = random.random(lookups) < LATE
    late[:early] = False
    rows[late] = old + np.searchsorted(zipf_cdf(ROWS - old, exponent), random.random(int(late.sum())))
    rows = random.permutation(ROWS)[rows]
    if permuted:
        middle = early + (lookups - early) // 2
        rows[middle:] = random.permutation(ROWS)[rows[middle:]]
    name = f"Zipf {exponent:g}, new rows" + (", permuted in the middle" if permuted else "")
    return Trace(name, ROWS, rows[:early], rows[early:])


def bookcrossing(folder: Path, lookups: int = LOOKUPS) -> Trace | None:
    """Returns the first lookups of Book-Crossing in file order, by feature; None without the file.

    Each distinct value of a feature that they look up is a row.
    """
    path = folder / "bookcrossing" / "ratings.parquet"
    if not path.exists():
        return None
    features = [feature.name for feature in load_schema("bookcrossing").categorical]
    data = parquet.read_table(path, columns=features).slice(0, lookups // len(features))
    columns, rows = [], 0
    for name in features:
        values = data[name].fill_null("").combine_chunks().dictionary_encode()
        columns.append(rows + values.indices.to_numpy().astype(np.int64))
        rows += len(values.dictionary)
    looked_up = np.random.default_rng(0).permutation(rows)[np.stack(columns, axis=1).ravel()]
    early = int(looked_up.size * CALIBRATED)
    return Trace("Book-Crossing, in file order", rows, looked_up[:early], looked_up[early:])
