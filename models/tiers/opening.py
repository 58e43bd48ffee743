"""Opens and fills the tiers of a bundle's rows, as a placement says, and returns a stack that gathers
them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.vocabulary import Vocabulary, ids_of_ranks
from polyrec.models.tiers.disk.cache_division import CacheDivision, divide_cache, multiple
from polyrec.models.tiers.disk.disk import DiskTier
from polyrec.models.tiers.disk.page_file import sector_bytes, write_pages
from polyrec.models.tiers.layout import DEVICE, DISK, HOST, REMOTE, TierLayout
from polyrec.models.tiers.prefix.prefix import Prefix, hottest, share_with_cache
from polyrec.models.tiers.remote.login import login_of
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Bytes, ReadRows, Slab
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.tier_set import TierSet
from polyrec.models.tiers.tier_settings import PAGE_BYTES, RemoteStore, TierSettings
from polyrec.models.tiers.updates.changes import Changes

if TYPE_CHECKING:
    from polyrec.models.tiers.remote.remote import RemoteTier

ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class WeightRows:
    """The rows of a fused weight, as bytes that `source` reads.

    sizes: stored rows of each table, its hottest, in the order of the weight.
    unknown: table -> out-of-vocabulary row, uint8 [bytes], where it is not among the stored ones.
    """

    row_format: RowFormat
    sizes: Mapping[str, int]
    source: ReadRows
    unknown: Mapping[str, Bytes] = field(default_factory=dict)


def rows_of_weight(
    weight: Tensor,
    row_format: RowFormat,
    sizes: Mapping[str, int],
    unknown: Mapping[str, Bytes] | None = None,
) -> WeightRows:
    """Returns the rows of a weight in memory. sizes, unknown: see WeightRows."""
    flat = weight.detach().contiguous().view(torch.uint8).numpy().reshape(-1, row_format.bytes)
    return WeightRows(row_format, sizes, lambda first, count: flat[first : first + count], unknown or {})


def open_stack(
    stored: WeightRows,
    placement: TierSettings,
    encoder: Encoder | None = None,
    device: torch.device | str = "cpu",
    changes: Changes | None = None,
    counts: Sequence[I64] | None = None,
    version: str = "",
) -> TierStack:
    """Copies every row into its tier and returns the stack.

    encoder: supplies the popularity of pages, the ids of remote rows and the out-of-vocabulary rows; required
    if rows are remote or updated by id.
    counts: accesses of each table by rank, non-increasing, if there is no encoder. With neither, no host rows
    join the cache.
    changes: updates of these rows, which the stack includes and keeps receiving.
    version: of the bundle, part of the keys of its rows in a remote store.
    Raises RuntimeUnavailable: cuts of another model, a folder that cannot be written, a reader that the
    kernel refuses, a store to be filled that does not answer.
    """
    row_format, sizes = stored.row_format, stored.sizes
    vocabularies = [] if encoder is None else [encoder.vocabularies[t] for t in sizes]
    if vocabularies:
        counts = [v.counts for v in vocabularies]
    if counts is not None and not any(cuts.device for cuts in placement.cuts.values()):
        placement = share_with_cache(placement, row_format.bytes, sizes, counts)
    try:
        layout = TierLayout(sizes, {t: c.counts for t, c in placement.cuts.items()})
    except ValueError as e:
        raise RuntimeUnavailable(f"placement: {e}") from None
    if layout.rows[REMOTE] and encoder is None:
        raise RuntimeUnavailable("placement: remote rows need the vocabularies, for their ids")
    since = 0
    if changes is not None and encoder is not None:
        since = changes.latest
        stored = replace(stored, source=changes.over(stored.source, sizes, encoder))
    division = _divide(row_format, layout, placement, counts is not None)
    rows = layout.rows[HOST] + division.slots
    slab = Slab(row_format, rows, division.pages, division.page_bytes, placement.huge_pages, placement.shared)
    fill(slab.row_bytes(), layout, HOST, stored.source)
    hot = _device_rows(stored, layout, torch.device(device)) if layout.rows[DEVICE] else None
    disk = _open_disk(slab, layout, stored.source, placement, division, counts) if layout.rows[DISK] else None
    prefix = Prefix(layout, counts, division.joining) if counts is not None and division.joining else None
    ids, remote = None, None
    if layout.rows[REMOTE] and placement.remote is not None:
        ids = _remote_ids(layout, vocabularies)
        remote = _open_remote(stored, layout, placement.remote, vocabularies, ids, changes, version)
    stack = TierStack(TierSet(layout, slab, hot, disk, remote, prefix), encoder, ids, changes)
    if changes is not None:
        changes.join(stack, since, placement.remote is None or placement.remote.fill)
        if remote is not None:
            remote.on_restart(partial(changes.restore_remote, stack))
    return stack


def fill(out: Bytes, layout: TierLayout, tier: int, source: ReadRows) -> None:
    done = 0
    for part in _parts(layout, tier, source):
        out[done : done + len(part)] = part
        done += len(part)


def _parts(layout: TierLayout, tier: int, source: ReadRows) -> Iterator[Bytes]:
    for first, count in layout.ranges(tier):
        yield from _read(source, first, count)


def file_parts(layout: TierLayout, source: ReadRows) -> Iterator[Bytes]:
    """Yields the rows of the disk tier's file, in order."""
    for table, rows in layout.filed.items():
        yield from _read(source, layout.base[table], rows)


def _read(source: ReadRows, first: int, count: int) -> Iterator[Bytes]:
    for start in range(first, first + count, ROWS_AT_ONCE):
        yield source(start, min(ROWS_AT_ONCE, first + count - start))


def _device_rows(stored: WeightRows, layout: TierLayout, device: torch.device) -> Tensor:
    row_format = stored.row_format
    shape = layout.rows[DEVICE], row_format.units
    try:
        out = torch.empty(shape, dtype=row_format.unit, device=device)
    except torch.OutOfMemoryError as e:
        raise RuntimeUnavailable(f"rows do not fit on '{device}': {str(e).splitlines()[0]}") from None
    except (RuntimeError, AssertionError) as e:  # torch built for CPUs fails an assertion
        raise RuntimeUnavailable(f"torch has no device '{device}': {str(e).splitlines()[0]}") from None
    done = 0
    for part in _parts(layout, DEVICE, stored.source):
        # copy, because torch warns about read-only arrays
        out[done : done + len(part)] = torch.from_numpy(part.copy()).view(row_format.unit)
        done += len(part)
    return out


def _divide(
    row_format: RowFormat, layout: TierLayout, placement: TierSettings, counted: bool
) -> CacheDivision:
    """Divides the cache's bytes. Raises RuntimeUnavailable if the folder cannot be written.

    counted: whether accesses are known, which decide the host rows that may join the cache.
    """
    if not layout.rows[DISK]:
        return CacheDivision(slots=0, pages=1, page_bytes=multiple(row_format.bytes, PAGE_BYTES), joining=0)
    assert placement.directory is not None
    try:
        placement.directory.mkdir(parents=True, exist_ok=True)
        page_bytes = multiple(row_format.bytes, sector_bytes(placement.directory))
    except OSError as e:
        raise _unwritable(placement.directory, e) from None
    joining = 0
    if counted and not layout.rows[DEVICE]:  # a device reads host rows by their addresses, so they stay
        joining = int(layout.counts[(layout.tier == HOST) & layout.is_filed].sum())
    return divide_cache(
        placement.cache_bytes, row_format.bytes, page_bytes, layout.file_rows, layout.rows[HOST], joining
    )


def _unwritable(directory: Path, e: OSError) -> RuntimeUnavailable:
    reason = e.strerror or e
    return RuntimeUnavailable(f"placement: the disk tier in '{directory}' cannot be opened: {reason}")


def _open_disk(
    slab: Slab,
    layout: TierLayout,
    source: ReadRows,
    placement: TierSettings,
    division: CacheDivision,
    counts: Sequence[I64] | None,
) -> DiskTier:
    assert placement.directory is not None
    try:
        file, name = tempfile.mkstemp(".pages", "polyrec-", placement.directory)
        os.close(file)
        path = Path(name)
        try:
            write_pages(path, slab, file_parts(layout, source))
            kept = layout.rows[HOST]
            disk = DiskTier(path, slab, layout.file_rows, kept, division.joining, placement.reader)
        finally:
            # an unlinked file disappears with the process, even if it is killed
            path.unlink(missing_ok=True)
    except OSError as e:
        raise _unwritable(placement.directory, e) from None
    if counts is not None:
        _keep_next(disk, layout, source, counts)
    return disk


def _keep_next(disk: DiskTier, layout: TierLayout, source: ReadRows, counts: Sequence[I64]) -> None:
    """Fills the row cache with the hottest rows of the disk tier, by calibration."""
    held = list(layout.cuts.values())
    starts = [h[DEVICE] + h[HOST] for h in held]
    below = [own[start : start + h[DISK]] for own, start, h in zip(counts, starts, held, strict=True)]
    below = [own[: np.searchsorted(-own, 0)] for own in below]
    taken = hottest(below, disk.row_cache.slots)
    rows, at = [], []
    for table, start, own, n in zip(layout.tables, starts, below, taken, strict=True):
        rows.append(layout.base[table] + start + np.arange(n))
        at.append(own[:n])
    order = np.argsort(-np.concatenate(at), kind="stable")
    fused = np.concatenate(rows)[order]
    _, local = layout.locate(fused)

    def values(which: I64) -> Bytes:
        return _read_rows(source, fused[which])

    disk.keep(local, values)


def _read_rows(source: ReadRows, rows: I64) -> Bytes:
    """Reads rows of a source, in contiguous runs. rows: int64 [n], distinct."""
    order = np.argsort(rows)
    wanted = rows[order]
    ends = np.append(np.flatnonzero(np.diff(wanted) != 1) + 1, wanted.size)
    parts = []
    first = 0
    for end in ends.tolist():
        parts.append(source(int(wanted[first]), end - first))
        first = end
    out = np.concatenate(parts)
    back = np.empty_like(out)
    back[order] = out
    return back


def _remote_ids(layout: TierLayout, vocabularies: Sequence[Vocabulary]) -> I64:
    ids = []
    for vocabulary, size, held in zip(vocabularies, layout.sizes, layout.cuts.values(), strict=True):
        if held[REMOTE]:
            # of a table that is partly computed, only the hottest `size` ranks are stored
            ids.append(ids_of_ranks(vocabulary.rank_of_id)[size - held[REMOTE] : size])
    return np.concatenate(ids).astype(np.int64)


def _open_remote(
    stored: WeightRows,
    layout: TierLayout,
    store: RemoteStore,
    vocabularies: Sequence[Vocabulary],
    ids: I64,
    changes: Changes | None,
    version: str,
) -> RemoteTier:
    # imported here, because redis-py takes a tenth of a second
    from polyrec.models.tiers.remote.remote import RemoteTier

    source = stored.source
    fallback = np.zeros((len(layout.tables), stored.row_format.bytes), np.uint8)
    for i, (table, vocabulary) in enumerate(zip(layout.tables, vocabularies, strict=True)):
        rank = int(vocabulary.rank_of_id[vocabulary.oov_id]) if vocabulary.specials else layout.sizes[i]
        if rank < layout.sizes[i]:
            fallback[i] = source(layout.base[table] + rank, 1)[0]
        elif table in stored.unknown:
            fallback[i] = stored.unknown[table]
    prefix = f"{store.prefix}{version}:"
    remote = RemoteTier(
        store.url,
        layout.tables,
        fallback,
        store.timeout_ms / 1e3,
        prefix,
        login_of(store),
        stored.row_format.sound,
        {i: v.reserved() for i, v in enumerate(vocabularies) if v.reserved().size},
    )
    if store.fill:
        done = 0
        tables = layout.table[layout.segments(layout.rows_of(REMOTE))]
        parts = _parts(layout, REMOTE, source)
        try:
            while done < ids.size:
                # other open tiers may be writing newer values to the same store
                with nullcontext() if changes is None else changes.held:
                    part = next(parts)
                    own = slice(done, done + len(part))
                    remote.write(tables[own], ids[own], part)
                done += len(part)
        except OSError as e:
            remote.close()
            raise RuntimeUnavailable(f"placement: the remote store cannot be filled: {e}") from None
    return remote
