"""Computes the bytes that training workers exchange per step, as models/training/workers/ sends them.

Ids take four bytes, and values and gradients of a row four bytes per column.
tests/planner/training/test_exchange.py compares the expected bytes of each form with those that two processes
really send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from polyrec.models.schema.batch import F64, I64
from polyrec.planner.training.popularity import Popularity

Form = Literal["every lookup", "distinct", "fae", "hotline"]
FORMS: tuple[Form, ...] = ("every lookup", "distinct", "fae", "hotline")
REPLICATING: tuple[Form, ...] = ("fae", "hotline")
COUNT_BYTES = 8


@dataclass(frozen=True, slots=True)
class Exchange:
    """Bytes that one worker sends in a step, on average.

    fetched: ids and rows before the forward pass. pushed: gradients of rows. summed: gradients of the net.
    messages: number of collective calls. popular: share of the training rows whose lookups are all of
    replicated rows.
    """

    fetched: float
    pushed: float
    summed: float
    messages: float
    popular: float = 0.0

    @property
    def sent(self) -> float:
        return self.fetched + self.pushed + self.summed


@dataclass(frozen=True, slots=True)
class Step:
    """The properties of a step that determine what is exchanged.

    workers: number of workers. rows: rows of the whole batch. whole: rows per request if a request is hot
    only as a whole, else 1.
    """

    workers: int
    rows: int
    width: int
    net_bytes: int
    whole: float = 1.0


def expected_exchange(form: Form, popularity: Popularity, step: Step, hot: int) -> Exchange:
    """Returns the expected exchange of a form. hot: number of replicated rows, for fae and hotline."""
    others = step.workers - 1
    if not others:
        return Exchange(0, 0, 0, 0, 1.0)
    summed = 2 * others / step.workers * (step.net_bytes + 4)
    own_rows = step.rows / step.workers
    all_rows = popularity.rows
    if form == "every lookup":
        return _by_owner(own_rows * float(popularity.expanded.sum()), step, summed)
    if form == "distinct":
        return _by_owner(popularity.distinct(own_rows, all_rows), step, summed)
    replicated = popularity.between(0, hot)
    shares = _shares(popularity, replicated)
    popular = _popular_share(popularity, shares, step.whole)
    if form == "hotline":
        cold = popularity.distinct(own_rows, all_rows - replicated)
        gathered = _gathered(popularity.distinct(own_rows, replicated), step)
        by_owner = _by_owner(cold, step, summed)
        return Exchange(by_owner.fetched, by_owner.pushed + gathered, summed, by_owner.messages + 2, popular)
    return _fae(popularity, step, summed, replicated, shares, popular)


def _fae(
    popularity: Popularity, step: Step, summed: float, replicated: I64, shares: F64, popular: float
) -> Exchange:
    """Returns the exchange of fae: hot batches send only gradients of replicas, cold batches all rows."""
    own_rows = step.rows / step.workers
    run_shares = np.maximum(shares[popularity.table], 1e-300)
    gathered = _gathered(popularity.distinct(own_rows, replicated, 1 / run_shares), step) if popular else 0.0
    if popular >= 1:
        return Exchange(0, gathered, summed, 3, 1.0)
    # rows of cold batches look up replicated rows too, less often than an average one; not at all in a table
    # that so few rows look up that the product over all tables is greater than its own share
    rest = popularity.distinct(own_rows, replicated, np.maximum(1 - popular / run_shares, 0) / (1 - popular))
    rest += popularity.distinct(own_rows, popularity.rows - replicated, 1 / (1 - popular))
    cold = _by_owner(rest, step, summed)
    share = 1 - popular
    return Exchange(
        share * cold.fetched, share * cold.pushed + popular * gathered, summed,
        share * cold.messages + popular * 3, popular,
    )  # fmt: skip


def _by_owner(rows: float, step: Step, summed: float) -> Exchange:
    """Returns the exchange of rows that are sent by their owners and return as gradients."""
    others = step.workers - 1
    away = rows * others / step.workers
    return Exchange(away * (4 + 4 * step.width) + COUNT_BYTES * others, away * 4 * step.width, summed, 5)


def _gathered(rows: float, step: Step) -> float:
    """Returns the bytes of replicated rows' gradients, with ids, to every other worker."""
    return (step.workers - 1) * (rows * (4 + 4 * step.width) + COUNT_BYTES)


def _shares(popularity: Popularity, replicated: I64) -> F64:
    """Returns the share of each table's lookups that are of replicated rows, float64 [tables]."""
    total = popularity.lookups(popularity.rows)
    found: F64 = popularity.lookups(replicated) / np.where(total > 0, total, 1)
    return np.minimum(np.where(total > 0, found, 1.0), 1.0)


def _popular_share(popularity: Popularity, shares: F64, whole: float) -> float:
    """Returns the share of training rows (requests, if whole) that look up only replicated rows.

    Lookups are assumed independent.
    """
    once = popularity.lookups(popularity.rows)
    # lookups of a row; of a request, those of its context once and those of its candidates `whole` times
    exponent = popularity.expanded if whole == 1 else once * whole
    return float(np.prod(shares**exponent))
