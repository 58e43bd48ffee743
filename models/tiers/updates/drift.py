"""Moves rows between tiers when their popularity changes (drift).

Production batches are sampled by copying their lookups; nothing is counted on the request path. From this
sample and the previous counts, rows that are now hotter than the coldest rows of the tier above swap places
with them. Only rows that change tiers move, so a new order is small: an encoder with the new ranks, and the
values of the moved rows, overlaid on the tiers. It is built in the background and installed by one
assignment; each batch is encoded and gathered in a single order (`view`).
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from polyrec.models.schema.batch import F32, I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.vocabulary import Vocabulary, ids_of_ranks
from polyrec.models.tiers.layout import DEVICE, DISK, HOST
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.view import View

ROWS_AT_ONCE = 8192
EVERY = 16
MAX_SWAPPED = 1 << 17
"""Rows that swap at one boundary of a table at one time."""


@dataclass(frozen=True, slots=True)
class DriftReport:
    """The effect of a new order.

    rows: number of moved rows. looked_up: lookups in the sample.
    before, after: share of the sample's lookups in device and host memory, in the old and the new order.
    """

    rows: int
    looked_up: int
    before: float
    after: float


class Drift:
    """Adapts the row order of a stack to current popularity. All methods must run in one background thread.

    memory: weight of the past, in lookups. The default is the number that calibration counted, so that an
    unusual hour has little effect. A sampled lookup counts for all those that it represents.
    every: one of this many batches is sampled.
    """

    def __init__(
        self,
        stack: TierStack,
        memory: float | None = None,
        every: int = EVERY,
    ) -> None:
        if stack.views.newest.encoder is None:
            raise ValueError("tiers that were opened without vocabularies cannot be reordered")
        self._stack = stack
        self.sample = stack.sample
        self.sample.every = self.sample.every or every
        # By id, because ranks change. Only needed to build a new order, so it is stored beside the file, not
        # in memory.
        folder = None if stack.tiers.disk is None else stack.tiers.disk.path.parent
        vocabularies = self._encoder(stack.views.newest).vocabularies
        self._heat = {t: _by_id(v, folder) for t, v in vocabularies.items()}
        self._memory = self._known() if memory is None else memory

    def reorder(self) -> DriftReport:
        """Builds a new order from the sample and installs it if any row moves; blocks meanwhile."""
        stack, layout = self._stack, self._stack.tiers.layout
        with stack.writing:
            view = stack.views.newest
            encoder = self._encoder(view)
            looked_up, lookups = self.sample.take(view.order)
            weight = lookups / max(looked_up.size, 1)
            rows, counts = np.unique(looked_up, return_counts=True)
            known = self._known()
            keep = min(self._memory / known, 1.0) if known else 0.0
            moved: list[I64] = []
            came_from: list[I64] = []
            vocabularies = dict(encoder.vocabularies)
            before = after = 0
            for number, table in enumerate(layout.tables):
                base, size = layout.base[table], layout.sizes[number]
                first, last = np.searchsorted(rows, (base, base + size))
                ranks, fresh = rows[first:last] - base, counts[first:last]
                vocabulary = vocabularies[table]
                ids = ids_of_ranks(vocabulary.rank_of_id)
                heat = self._heat[table]
                if looked_up.size:
                    heat *= keep
                heat[ids[ranks]] += fresh * np.float32(weight)
                held = layout.cuts[table]
                fast = held[DEVICE] + held[HOST]
                place = _exchanged(heat[ids[:size]], ranks, np.cumsum(held)[:-1].tolist())
                moved.append(base + place.to)
                came_from.append(base + place.source)
                now = _new_ranks(ranks, place)
                before += int(fresh[ranks < fast].sum())
                after += int(fresh[now < fast].sum())
                if place.to.size:
                    vocabularies[table] = _moved(vocabulary, ids, place, heat)
            to, source = np.concatenate(moved), np.concatenate(came_from)
            result = DriftReport(
                to.size, looked_up.size, *(x / max(looked_up.size, 1) for x in (before, after))
            )
            if to.size:
                new = Encoder(encoder.schema, vocabularies, encoder.standards)
                stack.reorder(new, to, self._values(view, source), self._remote_ids(view, new, to))
        return result

    def _known(self) -> float:
        return sum(float(h.sum(dtype=np.float64)) for h in self._heat.values())

    @staticmethod
    def _encoder(view: View) -> Encoder:
        assert view.encoder is not None
        return view.encoder

    def _values(self, view: View, rows: I64) -> NDArray[np.uint8]:
        row_format = self._stack.tiers.row_format
        out = np.empty((rows.size, row_format.bytes), np.uint8)
        buffer = torch.empty(
            (ROWS_AT_ONCE, row_format.units), dtype=row_format.unit, device=self._stack.device
        )
        for start in range(0, rows.size, ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            got = buffer[: part.size]
            if self._stack.gather(view, part, got, counted=False):
                raise OSError("the remote store does not answer: no new order can be built now")
            out[start : start + part.size] = got.cpu().view(torch.uint8).numpy().reshape(-1, row_format.bytes)
        return out

    def _remote_ids(self, view: View, encoder: Encoder, rows: I64) -> I64:
        layout = self._stack.tiers.layout
        segment = layout.segments(rows)
        away = layout.tier[segment] > DISK
        if not away.any():
            return view.remote_ids
        ids = view.remote_ids.copy()
        local, table = layout.local(rows, segment)[away], layout.table[segment[away]]
        for number in np.unique(table).tolist():
            own = table == number
            name = layout.tables[number]
            of_rank = ids_of_ranks(encoder.vocabularies[name].rank_of_id)
            ids[local[own]] = of_rank[rows[away][own] - layout.base[name]]
        return ids


@dataclass(frozen=True, slots=True)
class RankMoves:
    """A change in the order of a table's rows.

    to, source: int64 [moved], ascending in `to`; the row at rank `source` moves to rank `to`.
    """

    to: I64
    source: I64


def _exchanged(heat: F32, seen: I64, cuts: list[int]) -> RankMoves:
    """Swaps rows with colder ones of the tier above, boundary by boundary.

    heat: float32 [rows], by rank. seen: int64, ascending, ranks that may rise. cuts: ranks at which tiers
    begin. Starts at the coldest boundary, so that a row may rise several tiers.
    """
    at = np.arange(heat.size)  # the row at each rank
    rising = seen
    for cut in reversed(cuts):
        if not 0 < cut < heat.size:
            continue
        lower = rising[rising >= cut]
        count = min(lower.size, cut, MAX_SWAPPED)
        if not count:
            continue
        up = lower[np.argsort(-heat[at[lower]], kind="stable")[:count]]
        coldest = np.argpartition(heat[at[:cut]], count - 1)[:count]
        down = coldest[np.argsort(heat[at[coldest]], kind="stable")]
        worth = heat[at[up]] > heat[at[down]]
        up, down = up[worth], down[worth]
        at[up], at[down] = at[down], at[up]
        # risen rows now have the ranks of the rows that went down
        rising = np.union1d(rising, down)
    to = np.flatnonzero(at != np.arange(heat.size))
    return RankMoves(to, at[to])


def _new_ranks(ranks: I64, places: RankMoves) -> I64:
    """Returns the new ranks of the rows at old `ranks`."""
    if not places.to.size:
        return ranks
    order = np.argsort(places.source)
    source, to = places.source[order], places.to[order]
    found = np.minimum(np.searchsorted(source, ranks), source.size - 1)
    return np.where(source[found] == ranks, to[found], ranks)


def _moved(vocabulary: Vocabulary, ids: I64, places: RankMoves, heat: F32) -> Vocabulary:
    rank_of_id = vocabulary.rank_of_id.copy()
    rank_of_id[ids[places.source]] = places.to
    # counts must not increase, although the order within a tier is approximate
    counts = np.sort(np.rint(heat).astype(np.int64))[::-1].copy()
    return vocabulary.reordered(rank_of_id, counts)


def _by_id(vocabulary: Vocabulary, folder: Path | None) -> F32:
    """Returns the counts by id, in an unlinked file if a folder is given."""
    heat = vocabulary.counts[vocabulary.rank_of_id].astype(np.float32)
    if folder is None or not heat.size:
        return heat
    with tempfile.TemporaryFile(dir=folder) as file:
        kept = np.memmap(file, np.float32, "w+", shape=heat.shape)
    kept[:] = heat
    return kept
