"""Computes request features: numbers of each candidate that depend on the other rows of its request.

Input is the raw values of requests of any lengths, output is one column per feature, computed with
whole-array operations. Training, evaluation and all forms of request apply it to the same raw values, before
transforms, so that a model is served the features that it was trained on. In a request of n rows, with i = 0
... n-1 the position of this row:

    relative_position   i / (n - 1); 0 in a request of one row
    length              n
    rank                number of smaller values in the request; equal values share their mean rank
    difference, ratio   this row's value minus, or divided by, a statistic of the request's values
                        (`minimum`, `maximum`, `mean`, `median`), or the value of the row before or after
                        (`previous`, `next`); with `among`, a `match` feature, only rows that match have a
                        value for the statistic
    match               1 if this row's value is (one of) the context's, else 0
    place               position of this row's value in the context's list, from 0; missing without a match
    listed              number of values in the context's list
    present             1 if any row of the request matches, else 0
    count               number of rows of the request that match
    position            i of the first row that matches; missing if none does
    after               rows since the last match, 0 if this row matches; missing if there was none
    before              rows until the next match, 0 if this row matches; missing if there will be none
    distance            `after` or minus `before`, whichever is nearer to 0; `after` if both are

Missing numbers are left out of ranks and statistics. A result is missing (NaN) if it derives from a missing
number, from no number, or from a division by 0, or if float64 cannot hold it. Missing ids match nothing. A
row is compared with its own context. The order of rows matters only for `relative_position`, `position`,
`distance`, `after`, `before`, `previous` and `next`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.dedup.distinct import Jagged
from polyrec.models.schema.request.codes import match_codes
from polyrec.models.schema.request.matches import MatchFeatures
from polyrec.models.schema.request.numbers import NumberFeatures
from polyrec.models.schema.request.rows import Matches, Places, RequestRows, request_order
from polyrec.models.schema.schema import OF_MATCH, OF_NUMBER, OF_NUMBER_TO, RequestFeature, Schema


class RequestFeatures:
    """The request features of one schema.

    numbers, matches: the raw features that they are computed from, as in RequestRows.
    candidate, context: the compared features.
    """

    def __init__(self, schema: Schema) -> None:
        numeric = OF_NUMBER + OF_NUMBER_TO
        places = list(enumerate(schema.request))
        self.names = tuple(r.name for r in schema.request)
        self.numbers = tuple(dict.fromkeys(r.of or "" for r in schema.request if r.compute in numeric))
        self.matches = tuple(
            dict.fromkeys((r.of or "", r.to or "") for r in schema.request if r.compute in OF_MATCH)
        )
        self.candidate = tuple(dict.fromkeys(of for of, _ in self.matches))
        self.context = tuple(dict.fromkeys(to for _, to in self.matches))
        read = {*self.candidate, *self.context}
        self.singles = tuple(f for f in schema.categorical if f.name in read and not f.multi)
        self.bags = tuple(f for f in schema.categorical if f.name in read and f.multi)
        # i: the feature's column in the result
        self._of_rows = [(i, r.compute) for i, r in places if r.of is None]
        match_of = {names: match for match, names in enumerate(self.matches)}
        self._of_matches = [
            (i, r.compute, match_of[r.of or "", r.to or ""]) for i, r in places if r.compute in OF_MATCH
        ]
        self._match_computes = tuple(dict.fromkeys(compute for _, compute, _ in self._of_matches))
        among = {schema.request[i].name: match for i, _, match in self._of_matches}
        # a number, and the match whose rows have it; None for all rows
        keys = {
            r.name: (r.of or "", None if r.among is None else among[r.among])
            for r in schema.request
            if r.compute in numeric
        }
        self._keys = tuple(dict.fromkeys(keys.values()))
        self._of_numbers: list[tuple[int, RequestFeature, int]] = [
            (i, r, self._keys.index(keys[r.name])) for i, r in places if r.compute in numeric
        ]

    def match(
        self, candidate: Mapping[str, I64], context: Mapping[str, Jagged], context_row: I64 | None = None
    ) -> dict[tuple[str, str], Matches]:
        """Compares the codes of all compared features; arguments as for `match_codes`."""
        return {(of, to): match_codes(candidate[of], context[to], context_row) for of, to in self.matches}

    def compute_grouped(self, rows: RequestRows, group: I64) -> F64:
        """Returns the features of rows that each have their own context, float64 [rows, features].

        rows: in any order; `lengths` are ignored. group: int64 [rows], the request of each row.
        """
        order, lengths = request_order(group)
        if lengths.size == 1 or (order[1:] > order[:-1]).all():
            return self(replace(rows, lengths=lengths))
        out = np.empty((order.size, len(self.names)))
        out[order] = self(rows.take(order, lengths))
        return out

    def __call__(self, rows: RequestRows) -> F64:
        """Returns the features, float64 [rows, features], NaN where missing."""
        place = Places.from_lengths(rows.lengths)
        # stored [features, rows], so that each column is written contiguously
        out = np.empty((len(self.names), place.rows))
        for i, compute in self._of_rows:
            out[i] = place.relative() if compute == "relative_position" else place.spread(place.lengths)
        if self.matches:
            of_matches = MatchFeatures([rows.matches[names] for names in self.matches], place)
            found = {compute: getattr(of_matches, compute)() for compute in self._match_computes}
            for i, compute, match in self._of_matches:
                out[i] = found[compute][match]
        if self._keys:
            x = np.empty((len(self._keys), place.rows))
            for key, (name, among) in enumerate(self._keys):
                x[key] = rows.numbers[name]
                if among is not None:
                    np.copyto(x[key], np.nan, where=~of_matches.matching[among])
            of_numbers = NumberFeatures(x, place)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                for i, r, key in self._of_numbers:
                    if r.compute == "rank":
                        out[i] = of_numbers.rank(key)
                    else:
                        operation = np.subtract if r.compute == "difference" else np.divide
                        operation(rows.numbers[r.of or ""], of_numbers.statistic(key, r.to or ""), out=out[i])
        # undefined and too large values are infinite up to here
        np.copyto(out, np.nan, where=np.isinf(out))
        return out.T
