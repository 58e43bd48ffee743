"""Readers of a stack with remote rows, for tests of stores that fail meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from tests.models.tiers.worlds import row_of


def up(stack: TierStack) -> bool:
    remote = stack.tiers.remote
    assert remote is not None
    return remote.up


@contextmanager
def under_load(
    stack: TierStack, encoder: Encoder, seen: Callable[[I64, I64, int], str | None]
) -> Iterator[None]:
    """Two readers of rows of table `a` meanwhile. seen: is told the ids of a batch, the version of each row
    (-1: the out-of-vocabulary row) and how many were said to be lost; gives what is wrong with that."""
    v = encoder.vocabularies["a"]
    unknown = row_of(0, np.array([v.oov_id]))
    wrong: list[str] = []
    stop = threading.Event()

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        rows = TieredRows(stack)
        while not stop.is_set() and not wrong:
            ids = random.integers(0, v.size, 200)
            try:
                got = rows.gather(torch.from_numpy(v.rank_of_id[ids])).numpy()
            except Exception as e:
                wrong.append(f"a request failed: {e!r}")
                return
            version = np.where((got == unknown).all(axis=1), -1, got[:, 2].astype(np.int64))
            if not ((got == row_of(0, ids, version)).all(axis=1) | (version == -1)).all():
                wrong.append("a wrong row")
            if (offense := seen(ids, version, rows.take_fallbacks())) is not None:
                wrong.append(offense)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
