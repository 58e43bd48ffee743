"""One of two workers of test_exchange.py: fetches and pushes rows of random batches, tells the bytes sent.

python send_rows.py OUT, in the environment of a worker. Rows have lookups in two tables, each of Zipf's law.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from polyrec.models.training.workers.group import WorkerGroup
from polyrec.models.training.workers.row_exchange import Fetched, WorkerRows

TABLES = ((3000, 1.05), (500, 0.8))
WIDTH, SHARE, STEPS, HOT = 4, 128, 60, 600


def draw(random: np.random.Generator, rows: int) -> np.ndarray:
    """Ids of lookups, int64 [rows, tables], of the fused weight."""
    columns, base = [], 0
    for size, exponent in TABLES:
        p = np.arange(1, size + 1) ** -exponent
        columns.append(base + random.choice(size, rows, p=p / p.sum()))
        base += size
    return np.stack(columns, 1)


def hot_mask() -> np.ndarray:
    """The HOT most looked up rows of both tables, bool."""
    weights = [np.arange(1, size + 1) ** -exponent for size, exponent in TABLES]
    accesses = np.concatenate([w / w.sum() for w in weights])
    mask = np.zeros(accesses.size, bool)
    mask[np.argsort(-accesses, kind="stable")[:HOT]] = True
    return mask


def sent(group: WorkerGroup, rows: WorkerRows, lookups: np.ndarray, local: bool = False) -> int:
    """Bytes that one step sends for rows."""
    before = group.sent_bytes
    fetched: Fetched = rows.fetch(lookups.ravel(), local)
    fetched.values.sum().backward()  # type: ignore[no-untyped-call]
    rows.push([fetched])
    return group.sent_bytes - before


def main(out: str) -> None:
    total = sum(size for size, _ in TABLES)
    weight, mask = torch.zeros(total, WIDTH), hot_mask()
    with WorkerGroup.join() as group:
        random = np.random.default_rng(group.rank)
        found: dict[str, float] = {}
        for form in ("every lookup", "distinct", "hotline"):
            rows = WorkerRows(group, weight, mask if form == "hotline" else None, form != "every lookup")
            found[form] = np.mean([sent(group, rows, draw(random, SHARE)) for _ in range(STEPS)])
        rows = WorkerRows(group, weight, mask)
        drawn = draw(random, SHARE * STEPS * 10)
        is_hot = mask[drawn].all(1)
        steps = []
        for kind in (True, False):
            rows.use_hot, of_kind = kind, drawn[is_hot == kind]
            each = [of_kind[i * SHARE : (i + 1) * SHARE] for i in range(STEPS)]
            assert len(each[-1]) == SHARE
            steps.append(np.mean([sent(group, rows, batch, kind) for batch in each]))
        found["popular"] = float(is_hot.mean())
        found["fae"] = found["popular"] * steps[0] + (1 - found["popular"]) * steps[1]
    Path(f"{out}.{group.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
