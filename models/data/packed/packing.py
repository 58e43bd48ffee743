"""Packs data into a folder of Parquet files that store the shared columns of a request once.

    survey     one pass over the keys: are requests contiguous already? (models/data/packed/clusters.py)
    cluster    rows are streamed if so, else sorted through files
    split      a new request begins wherever a shared column changes (models/data/requests.py)
    write      one row per request, the other columns as lists, encodings by measured bytes

RecD's storage (MLSys'23, section 4.1) clusters rows by session so that compression finds repeats. Here the
repeats within a request are not written at all, and compression handles those between requests. Memory is one
row group plus what clustering needs. Packing is lossless: models/data/packed/reader.py returns every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from polyrec.models.data.packed.clusters import Clustering, cluster_rows, survey
from polyrec.models.data.packed.reader import Packing, is_packed
from polyrec.models.data.packed.writer import PackedWriter
from polyrec.models.data.parquet import parquet_files
from polyrec.models.data.reader import DataReader
from polyrec.models.data.requests import comparable_arrays, request_starts, split_requests
from polyrec.models.errors import DataError
from polyrec.models.files import atomic_path
from polyrec.models.progress import Phase, ignore_phase
from polyrec.models.schema.dedup.grouping import Repeats
from polyrec.models.schema.schema import Schema

SAMPLE_BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Packed:
    """Summary of a written folder.

    requests: distinct values of the group. stored: rows stored, more than the requests if a context changes
    within one.
    shared, per_row: columns stored once per request, and once per row.
    left_out: columns that are neither features nor keys. moved: whether rows had to be sorted.
    repeats: groups of features that repeat together in the first rows, with rows / distinct rows.
    """

    path: Path
    rows: int
    requests: int
    stored: int
    bytes: int
    shared: tuple[str, ...]
    per_row: tuple[str, ...]
    left_out: tuple[str, ...]
    moved: bool
    repeats: tuple[tuple[tuple[str, ...], float], ...]


def pack(
    reader: DataReader,
    schema: Schema,
    out: str | Path,
    *,
    cluster_by: str | None = None,
    replace: bool = False,
    phase: Phase = ignore_phase,
) -> Packed:
    """Writes the reader's rows to the folder `out`, atomically.

    cluster_by: a column (a session) whose rows are stored together; by default, requests are.
    Raises DataError if there is nothing to cluster by, `out` exists, or a key is missing.
    """
    target = Path(out)
    clustering = _clustering(schema, cluster_by)
    _check_target(target, replace)
    columns, left_out = _readable(reader, schema)
    if cluster_by is not None and cluster_by not in columns:
        raise DataError(
            f"{reader.path}: no column '{cluster_by}' to cluster by; there are {', '.join(columns)}"
        )
    numbers = _SinglePrecisionCheck([*(d.name for d in schema.dense), schema.label.column])
    found = survey(reader, clustering, numbers.names, numbers.check, phase("survey", reader.rows_hint))
    try:
        with atomic_path(target.resolve()) as partial:
            partial.mkdir(parents=True)
            rows = cluster_rows(reader, columns, clustering, found, partial, phase("pack", reader.rows_hint))
            first = next(rows)
            shared, per_row = _split(first, schema, clustering, columns)
            packing = Packing(
                for_schema=schema.name,
                group=clustering.group,
                cluster_by=clustering.by,
                columns=tuple(columns),
                shared=shared,
            )
            with PackedWriter(partial, packing, numbers.narrow()) as writer:
                for requests in split_requests(chain((first,), rows), shared):
                    writer.add(requests)
        size = sum(f.stat().st_size for f in parquet_files(target))
    except OSError as e:
        raise DataError(f"cannot write '{target}': {e.strerror or e}") from None
    return Packed(
        path=target,
        rows=found.rows,
        requests=found.requests,
        stored=writer.stored,
        bytes=size,
        shared=shared,
        per_row=per_row,
        left_out=left_out,
        moved=not found.contiguous,
        repeats=_repeats(first, schema),
    )


def _clustering(schema: Schema, cluster_by: str | None) -> Clustering:
    own = (*schema.candidate.names, schema.label.column)
    if schema.group is None:
        raise DataError(
            f"schema '{schema.name}' has no group, so there is nothing to cluster: "
            "name the column that tells requests apart (group: request_id)"
        )
    for name in (schema.group, cluster_by):
        if name in own:
            raise DataError(f"cannot cluster by '{name}': it is the label or a feature of candidates")
    return Clustering(schema.group, None if cluster_by == schema.group else cluster_by)


def _check_target(target: Path, replace: bool) -> None:
    if not target.exists():
        return
    if not replace:
        raise DataError(f"'{target}' exists already; choose another --out or add --replace")
    files = [f for f in target.rglob("*") if f.is_file()] if target.is_dir() else [target]
    if not target.is_dir() or any(f.suffix != ".parquet" or not is_packed(f) for f in files):
        raise DataError(f"'{target}' holds other things than packed data and will not be replaced")


def _readable(reader: DataReader, schema: Schema) -> tuple[list[str], tuple[str, ...]]:
    """Returns the columns to store, in order, and those that cannot be stored: lists unknown to the
    schema.
    """
    kept: list[str] = []
    left: list[str] = []
    for name in reader.columns:
        try:
            if name not in schema.columns:
                next(iter(reader.batches([name], 1)), None)
            kept.append(name)
        except DataError:
            left.append(name)
    return kept, tuple(left)


def _split(
    first: pa.RecordBatch, schema: Schema, clustering: Clustering, columns: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the columns stored once per request, and once per row.

    Columns that are not features are shared if that splits no request among the first rows. Where they change
    later, the request is split without loss.
    """
    own = {*schema.candidate.names, schema.label.column}
    shared = {*schema.context.names, *clustering.columns}
    requests = request_starts(first, [n for n in columns if n in shared]).size
    for name in columns:
        if name not in shared | own:
            trial = [n for n in columns if n in shared or n == name]
            (shared if request_starts(first, trial).size == requests else own).add(name)
    return tuple(n for n in columns if n in shared), tuple(n for n in columns if n in own)


def _repeats(first: pa.RecordBatch, schema: Schema) -> tuple[tuple[tuple[str, ...], float], ...]:
    names = (*schema.context.names, *schema.candidate.names)
    batches = [
        {name: comparable_arrays(part.column(name))[0] for name in names}
        for part in (
            first.slice(start, SAMPLE_BATCH_ROWS) for start in range(0, first.num_rows, SAMPLE_BATCH_ROWS)
        )
    ]
    repeats = Repeats(batches)
    return tuple((group, repeats.factor(frozenset(group))) for group in repeats.groups())


class _SinglePrecisionCheck:
    """Finds number columns whose values are exact in single precision."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        self._exact = dict.fromkeys(self.names, True)

    def check(self, data: pa.RecordBatch) -> None:
        for name in self.names:
            if self._exact[name]:
                x = data.column(name).to_numpy(zero_copy_only=False)
                with np.errstate(over="ignore"):
                    self._exact[name] = np.array_equal(x, x.astype(np.float32), equal_nan=True)

    def narrow(self) -> frozenset[str]:
        """Returns the columns that can be written in single precision."""
        return frozenset(name for name, exact in self._exact.items() if exact)
