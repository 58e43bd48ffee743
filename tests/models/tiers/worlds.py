"""Small models for tests of tiers: vocabularies, an encoder, rows that tell whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Label, Schema, Split
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.models.tiers.near.near_rows import NearRows
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.tier_settings import TierSettings
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.view import View

WIDTH = 8
FORM = RowFormat(WIDTH, "fp32")


def encoder_of(sizes: dict[str, int], seed: int = 0) -> Encoder:
    """A table a feature, of so many rows (two of them special), ranks shuffled, counts falling."""
    random = np.random.default_rng(seed)
    schema = Schema(
        name="world",
        categorical=tuple(Categorical(name=t, type="integer") for t in sizes),
        label=Label(column="label"),
        split=Split(rule="hash", columns=(next(iter(sizes)),)),
    )
    vocabularies = {}
    for table, rows in sizes.items():
        counts = np.sort(random.zipf(1.3, rows).clip(max=10**6))[::-1].astype(np.int64)
        vocabularies[table] = Vocabulary(table, "integer", rows - 2, random.permutation(rows), counts)
    return Encoder(schema, vocabularies, {})


def row_of(table: int, ids: I64, version: int | NDArray[Any] = 0) -> NDArray[np.float32]:
    """float32 [n, WIDTH]: says its table, its id and its version, so that a wrong row is known at sight."""
    out = np.empty((ids.size, WIDTH), np.float32)
    out[:, 0], out[:, 1], out[:, 2:] = table, ids, np.broadcast_to(version, ids.shape)[:, None]
    return out


def flat_weight(encoder: Encoder) -> torch.Tensor:
    """All rows in the encoder's order, at version 0."""
    parts = []
    for i, v in enumerate(encoder.vocabularies.values()):
        rows = np.empty((v.rows, WIDTH), np.float32)
        rows[v.rank_of_id] = row_of(i, np.arange(v.rows))
        parts.append(rows)
    return torch.from_numpy(np.concatenate(parts))


def world(
    encoder: Encoder,
    directory: Path,
    shares: tuple[float, ...] = (0.1, 0.2, 0.7),
    changes: Changes | None = None,
    **settings: Any,
) -> TierStack:
    """A stack with the same shares of every table on device, host and disk, the rest in a remote store."""
    cuts = {}
    for table, v in encoder.vocabularies.items():
        held = [int(s * v.rows) for s in shares]
        rest = v.rows - sum(held)
        cuts[table] = dict(zip(("device", "host", "disk"), held, strict=True))
        last = "remote" if "remote" in settings else "disk"
        cuts[table][last] = cuts[table].get(last, 0) + rest
    placement = TierSettings.model_validate(
        {"cuts": cuts, "cache_bytes": 8 * 4096, "directory": directory, **settings}
    )
    sizes = {t: v.rows for t, v in encoder.vocabularies.items()}
    stored = rows_of_weight(flat_weight(encoder), FORM, sizes)
    return open_stack(stored, placement, encoder, changes=changes, version="v")


def check_remote_rows(stack: TierStack, encoder: Encoder) -> None:
    """Asserts that gathers of several sizes give the flat table's rows, over 500 of them from the store."""
    flat, rows = flat_weight(encoder), TieredRows(stack)
    random = np.random.default_rng(0)
    for count in (0, 1, 7, 2000):
        index = torch.from_numpy(random.integers(0, len(flat), count))
        assert torch.equal(rows.gather(index), flat[index])
    assert rows.take_fallbacks() == 0
    level = stack.figures().levels["remote"]
    assert level.lookups == level.hits > 500


def check_resolved(stack: TierStack, view: View, near: NearRows, batch: Batch, rows: I64) -> None:
    """Asserts that `NearGather.resolve` finds what `TierStack.resolve` does. rows: of the batch."""
    before = stack.figures()
    found, middle = stack.near.resolve(view, near, batch), stack.figures()
    expected, after = stack.resolve(view, rows), stack.figures()
    assert found is not None
    assert middle.fallbacks - before.fallbacks == after.fallbacks - middle.fallbacks
    for table, tiers in after.tables.items():
        for tier, counts in tiers.items():
            half = np.add(before.tables[table].get(tier, (0, 0)), counts) / 2
            np.testing.assert_array_equal(middle.tables[table].get(tier, (0, 0)), half)
    assert not stack.idle
    np.testing.assert_array_equal(found.at, expected.at)
    np.testing.assert_array_equal(found.values, expected.values)
    in_slab = np.ones(rows.size, bool)
    in_slab[found.at] = False
    np.testing.assert_array_equal(found.addresses[in_slab], expected.addresses[in_slab])
    # a worker gathers all, before it overwrites those given by value
    assert found.addresses.min() >= 0
    assert found.addresses.max() < len(stack.tiers.slab.view)
    assert found.lost == expected.lost
    expected.release()
    found.release()
    assert stack.idle
