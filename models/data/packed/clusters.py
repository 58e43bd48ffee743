"""Makes the rows of each cluster contiguous by external sorting, for data of any size.

A survey pass records where each cluster (a session, a request) first occurs and how many rows it has. If all
clusters are already contiguous, rows are streamed unchanged. Otherwise they are partitioned into files of
whole clusters, in order of first occurrence, and each file is sorted in memory. The output has the clusters
in the order in which they begin, so time order is kept as far as clustering allows.

Memory: a few batches, the rows of one file (PARTITION_ROWS, or 1/MAX_PARTITIONS of all rows if that is more;
a cluster is never split), and 24 bytes per cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from polyrec.models.data.reader import DataReader
from polyrec.models.data.split import stable_hash
from polyrec.models.errors import DataError
from polyrec.models.mixing import U64, mix
from polyrec.models.progress import RowsDone, ignore_rows
from polyrec.models.schema.batch import I64

ROWS = 65536
PARTITION_ROWS = 1 << 18
MAX_PARTITIONS = 512
MERGE_FROM = 1 << 20
FIRST = "polyrec.first"


class KeyOccurrences:
    """Tracks the keys of a stream of rows: first occurrence and rows of each key, and the number of runs."""

    def __init__(self) -> None:
        self.rows = self.runs = 0
        self._last: np.uint64 | None = None
        self._parts: list[tuple[U64, I64, I64]] = []
        self._pending = self._merged = 0

    def add(self, keys: U64) -> None:
        """Adds the keys of the next rows, at least one."""
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        self.runs += starts.size - int(self._last == keys[0])
        self._last = keys[-1]
        self._parts.append((keys[starts], self.rows + starts, np.diff(np.append(starts, keys.size))))
        self.rows += keys.size
        self._pending += starts.size
        # merge whenever they have doubled, so that memory stays proportional to the distinct keys
        if self._pending > max(MERGE_FROM, 2 * self._merged):
            self.table()

    def table(self) -> tuple[U64, I64, I64]:
        """Returns (keys ascending, row of first occurrence, number of rows) of all distinct keys."""
        keys, first, rows = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        heads = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        self._parts = [(keys[heads], first[order][heads], np.add.reduceat(rows[order], heads))]
        self._pending = self._merged = heads.size
        return self._parts[0]

    @property
    def contiguous(self) -> bool:
        """Whether the rows of every key are contiguous."""
        return self.runs == self.table()[0].size


@dataclass(frozen=True, slots=True)
class Clustering:
    """Defines clusters: rows with the same `by`, and within it requests with the same `group`."""

    group: str
    by: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.group,) if self.by is None else (self.by, self.group)

    def keys(self, data: pa.RecordBatch) -> tuple[U64, U64]:
        """Returns the keys of cluster and request, uint64 [rows] each.

        Raises DataError on a missing value.
        """
        for name in self.columns:
            if data.column(name).null_count:
                raise DataError(f"column '{name}': a value is missing, and a row without it has no place")
        group = stable_hash(data.column(self.group))
        if self.by is None:
            return group, group
        cluster = stable_hash(data.column(self.by))
        return cluster, mix(cluster * np.uint64(31) + group)


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of one pass over the keys.

    rows, requests: their numbers. together: whether every cluster and request is already contiguous.
    clusters: see KeyOccurrences.table.
    """

    rows: int
    requests: int
    contiguous: bool
    clusters: tuple[U64, I64, I64]


def survey(
    reader: DataReader,
    clustering: Clustering,
    columns: Sequence[str] = (),
    look: Callable[[pa.RecordBatch], object] = lambda _: None,
    progress: RowsDone = ignore_rows,
) -> Survey:
    """Reads all keys once, and calls `look` with each batch, which also has `columns`.

    Raises DataError if there are no rows, or a key is missing.
    """
    clusters, requests = KeyOccurrences(), KeyOccurrences()
    for data in reader.batches(list(dict.fromkeys((*clustering.columns, *columns))), ROWS):
        cluster, request = clustering.keys(data)
        clusters.add(cluster)
        requests.add(request)
        look(data)
        progress(data.num_rows)
    if not clusters.rows:
        raise DataError(f"{reader.path}: there are no rows")
    different = requests.table()[0].size
    return Survey(
        clusters.rows, different, clusters.contiguous and requests.runs == different, clusters.table()
    )


def cluster_rows(
    reader: DataReader,
    columns: Sequence[str],
    clustering: Clustering,
    found: Survey,
    folder: Path,
    progress: RowsDone = ignore_rows,
) -> Iterator[pa.RecordBatch]:
    """Yields all rows with clusters contiguous, in batches of at most ROWS.

    columns: must include the clustering's. folder: existing folder for temporary files.
    """
    if found.contiguous:
        for data in reader.batches(columns, ROWS):
            progress(data.num_rows)
            yield data
        return
    for file in _partition(reader, columns, clustering, found, folder, progress):
        rows = _sort_partition(file, clustering)
        file.unlink()
        for start in range(0, rows.num_rows, ROWS):
            yield rows.slice(start, ROWS)


def _partition(
    reader: DataReader,
    columns: Sequence[str],
    clustering: Clustering,
    found: Survey,
    folder: Path,
    progress: RowsDone,
) -> list[Path]:
    """Writes all rows to files of whole clusters, in order of first occurrence, and returns the files."""
    keys, first, sizes = found.clusters
    order = np.argsort(first)
    before = np.empty_like(sizes)
    before[order] = np.cumsum(sizes[order]) - sizes[order]
    part_of = before // max(PARTITION_ROWS, -(-found.rows // MAX_PARTITIONS))
    files: dict[int, Path] = {}
    writers: dict[int, pa.RecordBatchStreamWriter] = {}
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with ExitStack() as stack:
        for data in reader.batches(columns, ROWS):
            at = np.searchsorted(keys, clustering.keys(data)[0])
            data = data.append_column(FIRST, pa.array(first[at]))
            by_part = np.argsort(part_of[at], kind="stable")
            parts, starts = np.unique(part_of[at][by_part], return_index=True)
            data = data.take(pa.array(by_part))
            for part, start, end in zip(parts.tolist(), starts, np.append(starts[1:], at.size), strict=True):
                if part not in writers:
                    files[part] = folder / f"{part}.arrow"
                    sink = stack.enter_context(pa.OSFile(str(files[part]), "wb"))
                    writer = pa.ipc.new_stream(sink, data.schema, options=options)
                    writers[part] = stack.enter_context(writer)
                writers[part].write_batch(data.slice(start, end - start))
            progress(at.size)
    return [files[part] for part in sorted(files)]


def _sort_partition(file: Path, clustering: Clustering) -> pa.RecordBatch:
    """Reads a file's rows sorted by cluster, then request, then data order."""
    with pa.OSFile(str(file), "rb") as source:
        (rows,) = pa.ipc.open_stream(source).read_all().combine_chunks().to_batches()
    first = rows.column(FIRST).to_numpy()
    _, mention, request = np.unique(clustering.keys(rows)[1], return_index=True, return_inverse=True)
    rows = rows.take(pa.array(np.lexsort((mention[request], first))))
    return rows.drop_columns([FIRST])
