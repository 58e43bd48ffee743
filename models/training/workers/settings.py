"""Defines the settings of the exchange of rows between workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["plain", "fae", "hotline"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of the exchange of rows.

    scheme: `plain` exchanges rows in every step; `fae` draws batches with popular lookups only, which need
    no exchange (models/training/workers/phases.py); `hotline` fetches the rows of one micro-batch while
    another is computed (models/training/workers/workers.py).
    distinct: whether equal lookups of a batch travel once.
    hot_bytes: bytes of the rows that fae and hotline replicate on every worker.
    replicated: table -> number of replicated rows, its hottest, from a training plan; None: the hottest of
    all tables within hot_bytes.
    follow: whether the replicated rows are those that a tracker finds popular while training (none at first);
    otherwise they are those that the calibration counted most.
    """

    scheme: Scheme = "plain"
    distinct: bool = True
    hot_bytes: int = 256 * 2**20
    follow: bool = False
    replicated: Mapping[str, int] | None = None
