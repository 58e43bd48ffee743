"""Features of the rows that match their context, computed for several matches at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.request.rows import Bools, Matches, Numbers, Places


class MatchFeatures:
    """Computes these features. Methods return, for each match, numbers that broadcast to [rows], infinite
    where undefined.

    matching: bool [matches, rows].
    """

    def __init__(self, matches: Sequence[Matches], place: Places) -> None:
        self._place = place
        self._listed = [found.listed for found in matches]
        self._at = np.array([found.at for found in matches])
        self.matching: Bools = self._at >= 0
        self._matching_row = np.where(self.matching, place.row, np.inf)

    def match(self) -> Bools:
        return self.matching

    def place(self) -> F64:
        return np.where(self.matching, self._at, np.inf)

    def listed(self) -> list[I64]:
        return self._listed

    def count(self) -> Numbers:
        return self._place.spread(np.add.reduceat(self.matching, self._place.starts, axis=1, dtype=np.int64))

    def present(self) -> Numbers:
        return self._place.spread(np.logical_or.reduceat(self.matching, self._place.starts, axis=1))

    def position(self) -> Numbers:
        first = np.minimum.reduceat(self._matching_row, self._place.starts, axis=1)
        return self._place.spread(first - self._place.starts)

    def after(self) -> F64:
        place = self._place
        latest = np.maximum.accumulate(np.where(self.matching, place.row, -np.inf), axis=1)
        after: F64 = place.row - latest
        if place.request is not None:
            # the row before a request's first row belongs to another request
            after[after > place.index] = np.inf
        return after

    def before(self) -> F64:
        place = self._place
        before: F64 = np.minimum.accumulate(self._matching_row[:, ::-1], axis=1)[:, ::-1] - place.row
        if place.request is not None:
            before[before + place.index >= place.spread(place.lengths)] = np.inf
        return before

    def distance(self) -> F64:
        after, before = self.after(), self.before()
        return np.where(after <= before, after, -before)
